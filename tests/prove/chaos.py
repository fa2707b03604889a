"""Calls go on and the books stay right while each part of the gateway is killed with -9 in turn.

The long form: 1,000 calls over 60 s, half of them streamed, through a real `tollgate up` with two API
processes and two replicas of real vLLM. The short form: 250 calls over 20 s before the scripted engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence

import redis

from tests.prove.report import Report
from tests.prove.traffic import books
from tests.prove.traffic.caller import Ask, Told
from tests.prove.traffic.holds import Holds, holds
from tests.prove.traffic.kills import Kill, came_back, kill_in_turn, wait_back
from tests.prove.traffic.whole_gateway import WholeGateway, a_gateway, differences
from tests.waiting import until
from tollgate.supervisor.checks import http_json

PARTS = ("api-1", "api-2", "drainer", "postgres", "valkey-broker", "valkey-limits", "valkey-cache")
PATIENCE_SECONDS = 30.0  # a call that takes longer counts as hung
DRAIN_SECONDS = 60.0
# Slots and holds of killed processes: a lease (30 s), and one look per lease by those that live.
HOLD_SECONDS = 120.0
LENGTHS = (1, 8, 16, 32, 64, 96)  # tokens
REPEATED_SHARE = 0.15  # of the calls are such that the cache may answer them
LEAVING_SHARE = 0.02  # of the streams are left by their caller
LAST_CALLS = 20
EXAMPLES = 5


def run(*, short: bool, seed: int) -> Report:
    calls, seconds, rounds = (250, 20.0, 1) if short else (1000, 60.0, 2)
    rng = random.Random(seed)
    report = Report()
    with a_gateway("--workers", "2", real=not short) as gateway:
        began = time.monotonic()
        gateway.start()
        report.figure("ready after", f"{time.monotonic() - began:.1f} s")
        told, kills = asyncio.run(_storm(gateway, _asks(calls, rng), seconds, rounds, rng))
        _tell_kills(report, gateway, kills)
        _tell_calls(report, told, kills)
        last = asyncio.run(_last_calls(gateway))
        report.claim(
            f"afterwards all works again: {LAST_CALLS} calls, a cache hit, the admin API, the broker",
            not (wrong := _what_does_not_work(gateway, last)),
            wrong,
        )
        _tell_books(report, gateway, [*told, *last], kills)
        if not short:
            _tell_holds(report, gateway)
        code = _stop(gateway)
        report.claim("Ctrl-C stops it with exit code 0 and leaves no process", code == 0, f"exit code {code}")
    return report


def _asks(count: int, rng: random.Random) -> list[Ask]:
    asks = []
    for number in range(count):
        stream = number % 2 == 1
        repeatable = rng.random() < REPEATED_SHARE
        leaves = stream and not repeatable and rng.random() < LEAVING_SHARE
        asks.append(
            Ask(
                tag=f"call-{number:04d}",
                prompt=f"Say it again, number {rng.randrange(8)}." if repeatable else f"Count from {number}.",
                max_tokens=8 if repeatable else LENGTHS[-1] if leaves else rng.choice(LENGTHS),
                stream=stream,
                shows_usage=stream and rng.random() < 0.5,
                repeatable=repeatable,
                leaves_after=3 if leaves else None,
            )
        )
    return asks


async def _storm(
    gateway: WholeGateway, asks: Sequence[Ask], seconds: float, rounds: int, rng: random.Random
) -> tuple[list[Told], list[Kill]]:
    """The calls at their times whatever becomes of the others, and the kills meanwhile."""
    caller = gateway.caller(PATIENCE_SECONDS)
    began = time.monotonic()

    async def at_its_time(number: int, ask: Ask) -> Told:
        await asyncio.sleep(max(0.0, began + seconds * number / len(asks) - time.monotonic()))
        return await caller.call(ask)

    killing = asyncio.create_task(
        kill_in_turn(
            gateway, PARTS, rounds=rounds, seconds=seconds, rng=rng, in_flight=lambda: caller.in_flight
        )
    )
    told = await asyncio.gather(*(at_its_time(number, ask) for number, ask in enumerate(asks)))
    kills = await killing
    await wait_back(gateway, kills)
    caller.close()
    return list(told), kills


async def _last_calls(gateway: WholeGateway) -> list[Told]:
    caller = gateway.caller(PATIENCE_SECONDS)
    told = [
        await caller.call(
            Ask(f"last-{number}", "Once more.", 4, stream=number % 2 == 1, repeatable=number < 4)
        )
        for number in range(LAST_CALLS)
    ]
    caller.close()
    return told


def _what_does_not_work(gateway: WholeGateway, last: Sequence[Told]) -> str:
    ready = gateway.ready()
    wrong = [f"{told.ask.tag} {told.ending} {told.status}" for told in last if told.ending != "whole"]
    if not any(told.from_cache for told in last):
        wrong.append("no cache hit")
    status, answer = http_json("GET", f"{ready['api']}/admin/v1/orgs", key=ready["admin_key"])
    if status != 200:
        wrong.append(f"the admin API answers {status}, {answer}")
    try:
        with contextlib.closing(redis.Redis.from_url(ready["broker_url"], socket_timeout=5)) as broker:
            broker.ping()
    except redis.RedisError as error:
        wrong.append(f"the broker: {error}")
    return "; ".join(wrong)


def _tell_kills(report: Report, gateway: WholeGateway, kills: Sequence[Kill]) -> None:
    counted = Counter(kill.name for kill in kills)
    back = came_back(gateway)
    report.claim(
        f"each of {len(PARTS)} parts comes back by itself after each kill -9",
        all(len(back.get(name, [])) >= counted[name] for name in PARTS),
        f"{len(kills)} kills, {sum(map(len, back.values()))} times back",
    )
    slowest = {name: max(seconds) for name, seconds in back.items()}
    report.figure(
        "back after, at most", ", ".join(f"{name} {slowest[name]:.1f} s" for name in PARTS if name in slowest)
    )
    report.figure(
        "calls in flight at the kills", ", ".join(f"{kill.name} {kill.in_flight}" for kill in kills)
    )


def _tell_calls(report: Report, told: Sequence[Told], kills: Sequence[Kill]) -> None:
    longest = max(one.seconds for one in told)
    hung = [one.ask.tag for one in told if one.ending == "hung"]
    report.claim(f"no call hung longer than {PATIENCE_SECONDS:g} s", not hung, f"the longest {longest:.1f} s")
    cut = [one.ask.tag for one in told if one.ending == "cut"]
    report.claim("no stream ended as if it were whole", not cut, ", ".join(cut[:EXAMPLES]))
    wrong = Counter(
        f"{one.status} {one.code}" for one in told if one.ending == "refused" and one.status not in (502, 503)
    )
    report.claim("no call is refused otherwise than with 502 or 503", not wrong, _counted(wrong))
    streams = sum(one.ask.stream for one in told)
    report.figure("calls", f"{len(told)}, {streams} of them streamed; the caller tries none a second time")
    report.figure("how they ended", _counted(Counter(one.ending for one in told)))
    report.figure(
        "errors told",
        _counted(Counter(f"{one.ending} {one.status} {one.code}" for one in told if one.code)) or "none",
    )
    took = sorted(one.seconds for one in told if one.ending == "whole")
    report.figure(
        "whole replies after",
        f"{took[len(took) // 2]:.2f} s (median), {took[len(took) * 99 // 100]:.2f} s (99 of 100)",
    )


def _tell_books(report: Report, gateway: WholeGateway, told: Sequence[Told], kills: Sequence[Kill]) -> None:
    began = time.monotonic()
    app = gateway.app_id()
    url = gateway.ready()["database_url"]
    # A caller that left is booked once the engine's tokenizer has counted what it got.
    left = {one.ask.tag for one in told if one.ending == "left"}

    def settled() -> bool:
        return gateway.drained() and left <= books.read(url, app).by_tag().keys()

    with contextlib.suppress(AssertionError):
        until(settled, "all journals are in the books", DRAIN_SECONDS)
    report.claim(
        f"all journals are in the books within {DRAIN_SECONDS:g} s",
        gateway.drained(),
        f"after {time.monotonic() - began:.1f} s",
    )
    killed = {kill.pid for kill in kills if kill.name.startswith("api-")}
    books.tell(report, books.match(told, books.read(url, app), killed))
    code, document = gateway.verify()
    report.claim(
        "entries balance and `tollgate ledger verify` finds nothing", code == 0, differences(document)
    )
    counts = document["counts"]
    report.figure(
        "ledger verify counts",
        f"{counts['calls']} calls (with the house's), {counts['with_one_charge']} with one charge, "
        f"{counts['with_none']} with none, {counts['with_more']} with more, "
        f"{sum(counts['charged_by_other_outcome'].values())} charges of other outcomes; "
        f"outcomes {counts['by_outcome']}",
    )


def _tell_holds(report: Report, gateway: WholeGateway) -> None:
    ready, app = gateway.ready(), gateway.app_id()
    seen: list[Holds] = []

    def settled() -> bool:
        seen.append(holds(ready["limits_url"], ready["database_url"], app))
        return seen[-1].settled()

    with contextlib.suppress(AssertionError):
        until(settled, "nothing is held for calls that have ended", HOLD_SECONDS)
    report.claim(
        f"within {HOLD_SECONDS:g} s the limits server has the ledger's spend, and no hold of an ended call",
        seen[-1].settled(),
        f"before: {seen[0].said()}; then: {seen[-1].said()}",
    )


def _stop(gateway: WholeGateway) -> int:
    code = gateway.up.stop()
    assert gateway.up.processes() == [], gateway.said()[-2000:]
    return code


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
