"""What limits cost: microseconds of CPU per call for admit + settle, in the API process and in Valkey.

    python -m bench.limits_cost [--calls 20000] [--in-flight 1 32 64] [--profile]

A real Valkey from its wheel with an append-only file; calls follow each other as fast as they can, so
the writes of all calls in flight are grouped as they are under load. The budget for the lane is 12 µs.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import psutil
import uvloop

from api.access.directory import App, Budget, Limit
from api.limits.decisions import Admitted, Decision, Reservation
from api.limits.limiter import Limiter
from api.limits.spent import Charge
from engine.valkey import ValkeyClient
from ledger.ids import new_id
from ledger.money import UNIT
from tollgate.embedded.valkey import Valkey
from tollgate.supervisor.ports import free_ports
from tollgate.supervisor.process import spawn, stop

MANY = 10**9
APPS = {
    "no limits": App("a0", "o", "none", (), ()),
    "as a fresh app": App(
        "a1",
        "o",
        "fresh",
        (
            Limit("app", "requests", "minute", MANY),
            Limit("app", "tokens", "minute", MANY * 1000),
            Limit("app", "concurrency", "none", MANY),
        ),
        (Budget("app", "total", 10**6 * UNIT, "USD", True),),
    ),
    "everything, and end users": App(
        "a2",
        "o",
        "all",
        tuple(
            limit
            for subject in ("app", "end_user")
            for limit in (
                Limit(subject, "requests", "minute", MANY),
                Limit(subject, "tokens", "minute", MANY * 1000),
                Limit(subject, "requests", "day", MANY),
                Limit(subject, "tokens", "day", MANY * 1000),
                Limit(subject, "concurrency", "none", MANY),
            )
        ),
        tuple(
            Budget(subject, period, 10**6 * UNIT, "USD", True)
            for subject in ("app", "end_user")
            for period in ("total", "day", "month")
        ),
    ),
}


class NothingSpent:
    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        return 0

    async def charges_of(self, owners: Mapping[str, str]) -> dict[str, Charge]:
        return {}


class NoLimiter:
    """What the bench itself costs: everything but the limiter."""

    unsettled = 0

    def admit(self, reservation: Reservation, then: Callable[[Decision], None]) -> None:
        then(ADMITTED)

    def settle(self, call_id: str, *, spent: int, tokens: int) -> None:
        pass


ADMITTED = Admitted()


async def run(limiter: Limiter | NoLimiter, app: App, calls: int, in_flight: int) -> None:
    """`calls` calls, `in_flight` of them at once, each settled one turn of the loop after it was admitted."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left, started = calls, 0

    def begin() -> None:
        nonlocal started
        started += 1
        call_id = new_id()

        def decided(decision: Decision) -> None:
            assert type(decision) is Admitted, decision
            loop.call_soon(end, call_id)

        limiter.admit(Reservation(call_id, app, "somebody", 700, 3_000_000, "USD", 256, 1, 6000), decided)

    def end(call_id: str) -> None:
        nonlocal left
        limiter.settle(call_id, spent=700_000, tokens=230)
        left -= 1
        if started < calls:
            begin()
        elif left == 0 and not done.done():
            done.set_result(None)

    for _ in range(in_flight):
        begin()
    await done
    while limiter.unsettled:
        await asyncio.sleep(0.001)


def cpu_us(process: psutil.Process) -> float:
    times = process.cpu_times()
    return (times.user + times.system) * 1e6


async def measure(url: str, server: psutil.Process, calls: int, widths: list[int], profile: bool) -> None:
    loop = asyncio.get_running_loop()
    client = ValkeyClient(url, loop, name="limits")
    limiter = Limiter(client, loop=loop, spent=NothingSpent(), grace_seconds=0)
    await run(NoLimiter(), APPS["no limits"], calls, 64)
    own = time.process_time()
    await run(NoLimiter(), APPS["no limits"], calls, 64)
    harness = (time.process_time() - own) * 1e6 / calls
    print(f"The bench itself takes {harness:.1f} µs per call, which is taken off the process's figures.")
    print(f"{'app':28}{'in flight':>10}{'process':>12}{'Valkey':>12}{'calls/s':>12}   (µs of CPU per call)")
    for name, app in APPS.items():
        for width in widths:
            await run(limiter, app, 2000, width)
            profiler = cProfile.Profile(time.process_time) if profile else None
            wall, own, its = time.perf_counter(), time.process_time(), cpu_us(server)
            if profiler:
                profiler.enable()
            await run(limiter, app, calls, width)
            if profiler:
                profiler.disable()
            own, its = (time.process_time() - own) * 1e6, cpu_us(server) - its
            wall = time.perf_counter() - wall
            print(
                f"{name:28}{width:>10}{own / calls - harness:>12.1f}{its / calls:>12.1f}{calls / wall:>12.0f}"
            )
            if profiler:
                pstats.Stats(profiler).sort_stats("tottime").print_stats(14)
    await limiter.stop()
    await client.stop()


@contextmanager
def limits_server() -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey("limits", Path(folder), free_ports(1)[0], "bench")
        command = valkey.prepare()
        process = spawn(command, Path(folder) / "log")
        try:
            while not valkey.is_ready():
                time.sleep(0.01)
            yield valkey.url, psutil.Process(process.pid)
        finally:
            stop(process, command.stop_signal, 5.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with limits_server() as (url, server):
        uvloop.run(measure(url, server, options.calls, options.in_flight, options.profile))


if __name__ == "__main__":
    main()
