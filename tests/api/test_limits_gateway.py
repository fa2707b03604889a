"""Limits and budgets as callers of a whole gateway meet them, over two API processes and a real drainer."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from api.access.directory import Limit
from api.lane.admission import TEMPLATE_TOKENS
from api.limits.spent import LedgerSpent
from engine.valkey import ValkeyClient
from tests import databases
from tests.api.gate import an_app, gate
from tests.caller import BrokenOff, Caller, Reply, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Hold, Pause, Reset, ScriptedEngine
from tests.gateway import App, Gateway, Price, running_gateway
from tests.own_valkey import ask as valkey
from tests.waiting import until
from tollgate.servers import Servers


def body(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, **more}


def hold(price: Price, ask: dict[str, Any]) -> Decimal:
    return price.charge(len(orjson.dumps(ask)) + TEMPLATE_TOKENS, ask["max_tokens"])


@pytest.fixture(scope="module")
def pair(
    servers: Servers, _template: None, _engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway of two processes that a test may kill one of."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        databases.fresh_database(servers.database_url) as url,
        running_gateway(servers, url, folder, engines=[_engine.url], processes=2) as running,
    ):
        yield running


def call(gateway: Gateway, app: App, ask: dict[str, Any]) -> Reply:
    with Caller(gateway) as caller:
        return caller.ask(app, ask)


def at_once(gateway: Gateway, app: App, ask: dict[str, Any], count: int) -> list[Reply]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: call(gateway, app, ask), range(count)))


@contextlib.contextmanager
def streams(gateway: Gateway, app: App, count: int) -> Iterator[list[Caller]]:
    """Callers that each have got the first word of an answer that goes on."""
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(gateway)) for _ in range(count)]
        for caller in callers:
            caller.send(request(app, body(stream=True)))
            assert caller.read_head()[0] == 200
            caller.read_until(wire.text("a"))
        yield callers


def test_a_budget_for_two_admits_two_of_ten_at_once_and_tells_the_others_not_to_try_again(
    pair: Gateway, engine: ScriptedEngine
) -> None:
    ask = body()
    engine.always(lambda _: [Pause("all asked"), wire.reply(wire.chat_answer("a b", prompt=4, completion=2))])
    app = pair.new_app(budget=hold(pair.price, ask) * 2)
    with ThreadPoolExecutor(10) as threads:
        replies = [threads.submit(call, pair, app, ask) for _ in range(10)]
        until(lambda: sum(reply.done() for reply in replies) == 8, "eight are refused while two are running")
        until(lambda: len(engine.requests()) == 2, "two are with the engine")
        engine.go("all asked")
        outcomes = [reply.result() for reply in replies]
    refused = [reply for reply in outcomes if reply.status == 429]
    assert sorted(reply.status for reply in outcomes) == [200] * 2 + [429] * 8
    for reply in refused:
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
    assert {row["charge"] for row in app.usage_rows(2)} == {pair.price.charge(4, 2)}
    assert call(pair, app, ask).status == 200  # what was not used came back


def test_a_refusal_names_a_max_tokens_that_passes(pair: Gateway, engine: ScriptedEngine) -> None:
    small = body(max_tokens=10)
    app = pair.new_app(budget=hold(pair.price, small))
    message = call(pair, app, body()).json()["error"]["message"]
    fitting = int(message.partition("max_tokens of at most ")[2].partition(" ")[0])
    assert fitting == 9  # one byte of the shorter number is missing from the prompt's bound
    assert call(pair, app, body(max_tokens=fitting)).status == 200


def test_a_rate_limit_over_two_processes_is_exact_and_its_headers_are_true(
    pair: Gateway, engine: ScriptedEngine
) -> None:
    app = pair.new_app(limits=[("app", "requests", "minute", 7), ("app", "tokens", "minute", 10**6)])
    replies = at_once(pair, app, body(), 20)
    passed = [reply for reply in replies if reply.status == 200]
    assert len(passed) == 7
    left = sorted(int(reply.headers["x-ratelimit-remaining-requests"]) for reply in passed)
    assert left == list(range(7))
    for reply in replies:
        assert reply.headers["x-ratelimit-limit-requests"] == "7"
        assert reply.headers["x-ratelimit-reset-requests"] == "1m1s"
        assert reply.headers["x-ratelimit-limit-tokens"] == "1000000"
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert app.usage_rows(7)


def test_end_users_are_held_apart(pair: Gateway, engine: ScriptedEngine) -> None:
    app = pair.new_app(limits=[("end_user", "requests", "minute", 1)])
    assert call(pair, app, body(user="anna")).status == 200
    assert call(pair, app, body(safety_identifier="anna")).status == 429
    assert call(pair, app, body(user="bert")).status == 200
    assert call(pair, app, body()).status == 200


def test_slots_come_back_from_leavers_engine_failures_and_bad_calls(
    pair: Gateway, engine: ScriptedEngine
) -> None:
    app = pair.new_app(limits=[("app", "concurrency", "none", 2)])
    begun = wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(wire.text("a"))

    def ends(number: int) -> None:
        with Caller(pair) as caller:
            if number % 5 == 0:  # leaves in mid-stream
                engine.script(begun, Hold())
                caller.send(request(app, body(stream=True)))
                caller.read_until(wire.text("a"))
                caller.reset()
            elif number % 5 == 1:  # leaves before the first byte
                engine.script(Hold())
                seen = len(engine.requests())
                caller.send(request(app, body(stream=True)))
                until(lambda: len(engine.requests()) > seen, "the engine has it")
                caller.reset()
            elif number % 5 == 2:  # the engine breaks off
                engine.script(begun, Reset())
                with contextlib.suppress(BrokenOff):
                    caller.ask(app, body(stream=True))
            elif number % 5 == 3:  # a call that can be no call
                assert caller.ask(app, body(max_tokens=-1)).status == 400
            else:
                assert caller.ask(app, body(model="nobody")).status == 404

    for number in range(50):
        until(lambda: _slots_held(pair, app) == 0, "all slots are free")
        ends(number)
    until(lambda: _slots_held(pair, app) == 0, "all slots are free")
    engine.always(lambda _: [begun, Hold()])
    with streams(pair, app, 2):
        assert call(pair, app, body()).status == 429
    until(lambda: _slots_held(pair, app) == 0, "all slots are free")


def _slots_held(gateway: Gateway, app: App) -> int:
    async def inside() -> int:
        client = ValkeyClient(gateway.servers.limits_url, asyncio.get_running_loop())
        try:
            held = await valkey(client, "ZCARD", f"tollgate:{{{app.id}}}:slots")
            assert isinstance(held, int)
            return held
        finally:
            await client.stop()

    return asyncio.run(inside())


@pytest.mark.usefixtures("_template")
def test_holds_of_a_killed_process_end_when_its_journal_is_in_the_books(
    servers: Servers, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.always(
        lambda _: [wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(wire.text("a")), Hold()]
    )
    with (
        databases.fresh_database(servers.database_url) as url,
        running_gateway(servers, url, tmp_path, engines=[engine.url]) as gateway,
    ):
        app = gateway.new_app(budget=Decimal(1), limits=[("app", "concurrency", "none", 5)])
        with streams(gateway, app, 3):
            gateway.processes[0].send_signal(signal.SIGKILL)
            gateway.processes[0].wait()
        assert {row["outcome"] for row in app.usage_rows(3)} == {"interrupted"}

        async def reconcile() -> None:
            async with gate(servers.limits_url, lease=0.5, spent=LedgerSpent(url)) as door:  # type: ignore[arg-type]
                calls, spent = f"tollgate:{{{app.id}}}:calls", f"tollgate:{{{app.id}}}:spent"
                assert await valkey(door.client, "HLEN", calls) == 3
                assert await valkey(door.client, "HGET", spent, "total") != b"0"
                records = await valkey(door.client, "HVALS", calls)
                assert isinstance(records, list)
                # As if its lease of 30 s had passed.
                await valkey(door.client, "ZREM", "tollgate:{limits}:processes", records[0].split(b" ")[1])
                async with asyncio.timeout(10):
                    while await valkey(door.client, "HLEN", calls):
                        await asyncio.sleep(0.05)
                assert await valkey(door.client, "HGET", spent, "total") == b"0"
                await door.admitted(an_app(Limit("app", "requests", "minute", 1)))

        asyncio.run(reconcile())
