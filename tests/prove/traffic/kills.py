"""Killing the parts of a running gateway in turn, and how they come back."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.prove.traffic.whole_gateway import WholeGateway

BACK = re.compile(r"^\S+ (\S+) is back after ([\d.]+) s\.$", re.MULTILINE)
POLL_SECONDS = 0.05
BACK_SECONDS = 60.0  # until a part that was killed runs again


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill -9. in_flight: calls that were running at that moment."""

    name: str
    pid: int
    at: float  # seconds since the epoch
    in_flight: int


async def kill_in_turn(
    gateway: WholeGateway,
    names: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    rng: random.Random,
    in_flight: Callable[[], int],
) -> list[Kill]:
    """Kill -9 each of the names `rounds` times, spread over `seconds`; each round in an order of its own."""
    order = [name for _ in range(rounds) for name in rng.sample(list(names), len(names))]
    began = time.monotonic()
    kills: list[Kill] = []
    for number, name in enumerate(order):
        due = began + seconds * (number + 0.5) / len(order) + rng.uniform(-0.2, 0.2)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        assert await wait_back(gateway, [kill for kill in kills if kill.name == name]), gateway.said()[-2000:]
        pid = gateway.pid(name)
        assert pid is not None, f"{name} has no process: {gateway.said()[-2000:]}"
        os.kill(pid, signal.SIGKILL)
        kills.append(Kill(name, pid, time.time(), in_flight()))
    return kills


def came_back(gateway: WholeGateway) -> dict[str, list[float]]:
    """By part, the seconds that its restarts took, as `up` said them."""
    found: dict[str, list[float]] = {}
    for name, seconds in BACK.findall(gateway.said()):
        found.setdefault(name, []).append(float(seconds))
    return found


async def wait_back(gateway: WholeGateway, kills: Sequence[Kill]) -> bool:
    """Wait until `up` has said of every killed part that it is back; False when that takes too long."""
    wanted: dict[str, int] = {}
    for kill in kills:
        wanted[kill.name] = wanted.get(kill.name, 0) + 1
    deadline = time.monotonic() + BACK_SECONDS
    while True:
        back = came_back(gateway)
        if all(len(back.get(name, [])) >= count for name, count in wanted.items()):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
