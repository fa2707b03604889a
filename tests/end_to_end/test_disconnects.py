"""A caller that leaves pays for the prompt and for what was delivered, once; the engine stops; zero is zero.

The scripted engine's tokenizer counts words: the prompt below is 4 tokens (3 words, 1 message), and each
delta is one word.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.caller import Caller, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Hold, Pause, Repeat, ScriptedEngine, Wait, Write
from tests.gateway import App, Gateway
from tests.waiting import until

PROMPT = [{"role": "user", "content": "three words here"}]
PROMPT_TOKENS = 4


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "stream": True, "messages": PROMPT, **more}


def delta(number: int) -> bytes:
    return wire.text(f"w{number} ")


def deltas(count: int) -> bytes:
    return b"".join(wire.chunk(delta(number)) for number in range(count))


def read_deltas(caller: Caller, count: int) -> None:
    caller.read_head()
    caller.read_until(delta(count - 1))


@pytest.mark.parametrize("break_off", [Caller.close, Caller.reset], ids=["closes", "resets"])
@pytest.mark.parametrize("delivered", [50, 5, 1])
def test_a_caller_that_leaves_mid_stream_pays_for_what_it_got(
    gateway: Gateway, app: App, engine: ScriptedEngine, delivered: int, break_off: Any
) -> None:
    engine.script(wire.stream_head() + wire.chunk(wire.role()) + deltas(delivered), Hold())
    caller = Caller(gateway)
    caller.send(request(app, ask()))
    read_deltas(caller, delivered)
    break_off(caller)
    engine.last().wait_closed()  # the engine is told to stop
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["usage_source"]) == ("caller_left", "counted")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (PROMPT_TOKENS, delivered)
    charge = gateway.price.charge(PROMPT_TOKENS, delivered)
    assert row["charge"] == charge
    assert [transfer["amount"] for transfer in app.transfers()] == [charge]


def test_the_usage_that_the_engine_had_reported_is_what_counts(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    engine.script(
        wire.stream_head() + wire.chunk(wire.role()) + deltas(50) + wire.chunk(wire.usage(10, 50)), Hold()
    )
    with Caller(gateway) as caller:
        caller.send(request(app, ask(stream_options={"include_usage": True})))
        caller.read_head()
        caller.read_until(wire.usage(10, 50))
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["usage_source"]) == ("caller_left", "engine")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (10, 50)


def test_a_caller_that_leaves_while_the_books_are_written_has_one_row_and_one_charge(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    calls = 40
    ending = wire.chunk(wire.finish()) + wire.chunk(wire.usage(10, 5)) + wire.chunk(wire.DONE) + b"0\r\n\r\n"
    for number in range(calls):
        gate = f"end-{number}"
        engine.script(
            wire.stream_head() + wire.chunk(wire.role()) + deltas(5), Pause(gate), Write(ending, (60, 400))
        )
        caller = Caller(gateway)
        caller.send(request(app, ask()))
        read_deltas(caller, 5)
        engine.go(gate)
        # A little later each time: before, within and after the last writes.
        time.sleep(number * 0.0002)
        caller.close()
    rows = app.usage_rows(calls)
    assert {row["outcome"] for row in rows} <= {"completed", "caller_left"}
    for row in rows:
        assert (row["prompt_tokens"], row["completion_tokens"]) in [(10, 5), (PROMPT_TOKENS, 5)]
    assert len(app.transfers()) == calls


def test_a_reported_zero_is_zero(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    engine.script(*wire.stream_reply(wire.chat_events(["a", "b"], prompt=0, completion=0)))
    engine.script(wire.reply(wire.chat_answer("a b", prompt=0, completion=0)))
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).status == 200
        assert caller.ask(app, ask(stream=False)).status == 200
    for row in app.usage_rows(2):
        assert (row["prompt_tokens"], row["completion_tokens"], row["charge"]) == (0, 0, 0)
        assert (row["outcome"], row["usage_source"]) == ("completed", "engine")
    assert app.transfers() == []


def test_a_caller_that_leaves_after_reported_zeros_pays_nothing(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    zero = wire.event({**wire.delta({"content": "w"}), "usage": wire.usage_of(0, 0)})
    engine.script(wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(zero), Hold())
    with Caller(gateway) as caller:
        caller.send(request(app, ask(stream_options={"include_usage": True})))
        caller.read_head()
        caller.read_until(zero)
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["usage_source"]) == ("caller_left", "engine")
    assert (row["prompt_tokens"], row["completion_tokens"], row["charge"]) == (0, 0, 0)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_caller_that_leaves_before_the_first_byte_stops_the_engine_and_pays_the_prompt(
    gateway: Gateway, app: App, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script(Hold())
    with Caller(gateway) as caller:
        caller.send(request(app, ask(stream=stream)))
        received = engine.last()
    received.wait_closed()
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["usage_source"]) == ("caller_left", "counted")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (PROMPT_TOKENS, 0)


def test_an_engine_that_cannot_count_leaves_a_flagged_estimate(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    engine.script(wire.stream_head() + wire.chunk(wire.role()) + deltas(5), Hold())
    with Caller(gateway) as caller:
        caller.send(request(app, ask()))
        read_deltas(caller, 5)
        engine.down()
    try:
        (row,) = app.usage_rows(1)
    finally:
        engine.up()
    assert row["outcome"] in ("caller_left", "engine_failed")
    if row["outcome"] == "caller_left":
        assert row["flags"] == ["estimated"]
        assert row["completion_tokens"] == 5


def test_a_body_that_never_becomes_whole_leaves_no_row(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    whole = request(app, ask())
    with Caller(gateway) as caller:
        caller.send(whole[:-5])
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).status == 200
    assert len(engine.requests()) == 1
    app.usage_rows(1)


def test_slots_come_back_whatever_way_calls_end(gateway: Gateway, engine: ScriptedEngine) -> None:
    app = gateway.new_app(limits=[("app", "concurrency", "none", 2)])
    cut = wire.stream_head() + wire.chunk(wire.role()) + deltas(2)
    for _ in range(5):
        for script in ((cut, Hold()), (Hold(),)):
            engine.script(*script)
            caller = Caller(gateway)
            caller.send(request(app, ask()))
            received = engine.wait_requests(len(engine.requests()) + 1)[-1]
            if len(script) == 2:
                read_deltas(caller, 2)
            caller.close()
            received.wait_closed()
        with Caller(gateway) as caller:
            assert caller.ask(app, {"model": "nobody", "messages": PROMPT}).status == 404
            assert caller.ask(app, b"{").status == 400
            engine.script(wire.reply(wire.error_body("no"), 400))
            assert caller.ask(app, ask()).status == 400

    def two_at_once() -> bool:
        first, second = Caller(gateway), Caller(gateway)
        with first, second, ThreadPoolExecutor() as both:
            replies = list(both.map(lambda caller: caller.ask(app, ask()), (first, second)))
            return [reply.status for reply in replies] == [200, 200]

    until(two_at_once, "two calls run at once after all others have ended")
    # The limit itself still holds.
    engine.always(lambda _: [wire.stream_head() + wire.chunk(wire.role()) + deltas(1), Hold()])
    with Caller(gateway) as first, Caller(gateway) as second, Caller(gateway) as third:
        for caller in (first, second):
            caller.send(request(app, ask()))
            read_deltas(caller, 1)
        assert third.ask(app, ask()).status == 429


def test_a_slow_caller_holds_the_engine_back(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    piece = wire.chunk(wire.text("x" * 60_000))
    total = 400 * len(piece)  # 24 MB: far more than the kernel's buffers take
    ending = wire.chunk(wire.finish() + wire.usage(4, 400) + wire.DONE) + wire.END_OF_CHUNKS
    engine.script(wire.stream_head() + wire.chunk(wire.role()), Repeat(piece, 400), ending)
    with Caller(gateway, receive_buffer=4096) as slow:
        slow.send(request(app, ask()))
        slow.read_head()
        received = engine.last()

        def held() -> int | None:
            before = received.sent
            time.sleep(0.2)
            return before if before and received.sent == before else None

        assert until(held, "the engine is held back") < total * 0.75
        memory = resident(gateway)
        with Caller(gateway) as other:
            assert other.ask(app, ask()).status == 200  # others are unharmed
        assert resident(gateway) < memory + (4 << 20)
        body = slow.read_chunks()
    assert body.count(b"x" * 60_000) == 400
    assert body.endswith(wire.DONE)
    rows = app.usage_rows(2)
    assert [row["outcome"] for row in rows] == ["completed", "completed"]


def test_a_slow_caller_that_leaves_frees_the_engine(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    piece = wire.chunk(wire.text("y" * 60_000))
    engine.script(
        wire.stream_head() + wire.chunk(wire.role()), Repeat(piece, 400), Wait(0.01), wire.END_OF_CHUNKS
    )
    with Caller(gateway, receive_buffer=4096) as slow:
        slow.send(request(app, ask()))
        slow.read_head()
        received = engine.last()
        until(lambda: received.sent > 1 << 20, "the engine has sent a megabyte")
    received.wait_closed()
    (row,) = app.usage_rows(1)
    assert row["outcome"] == "caller_left"


def resident(gateway: Gateway) -> int:
    """Bytes of memory that the API process has."""
    with open(f"/proc/{gateway.processes[0].pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096
