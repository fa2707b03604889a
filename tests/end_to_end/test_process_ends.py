"""A process that ends, in order or not, leaves one row per call, and says so to whoever still listens."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import databases
from tests.caller import BrokenOff, Caller, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Hold, Pause, Repeat, ScriptedEngine
from tests.gateway import App, Gateway, running_gateway
from tests.waiting import until
from tollgate.servers import Servers

GRACE = 2.0  # seconds
BEGUN = wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(wire.text("a"))


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}


@pytest.fixture
def mortal(servers: Servers, _template: None, engine: ScriptedEngine, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that a test may end."""
    with (
        databases.fresh_database(servers.database_url) as url,
        running_gateway(servers, url, tmp_path, engines=[engine.url], grace=GRACE, slots=256) as gateway,
    ):
        yield gateway


@contextlib.contextmanager
def open_streams(gateway: Gateway, app: App, count: int) -> Iterator[list[Caller]]:
    """Callers that each have got a piece of an answer."""
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(gateway)) for _ in range(count)]
        for caller in callers:
            caller.send(request(app, ask()))
        for caller in callers:
            caller.read_head()
            caller.read_until(wire.text("a"))
            caller.read_until(b"\r\n")
        yield callers


def test_sigterm_under_a_hundred_streams_ends_each_with_an_error_event_and_a_row(
    mortal: Gateway, engine: ScriptedEngine
) -> None:
    app = mortal.new_app()
    engine.always(lambda _: [BEGUN, Hold()])
    (process,) = mortal.processes
    with open_streams(mortal, app, 100) as callers:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for caller in callers:
            body = caller.read_chunks()
            assert body.startswith(b'data: {"error":')
            assert b'"code":"shutting_down"' in body
            assert b"[DONE]" not in body
            caller.wait_closed()
        assert process.wait(GRACE + 3) == 0
        assert time.monotonic() - began < GRACE + 3
    rows = app.usage_rows(100)
    assert {(row["outcome"], row["charge"]) for row in rows} == {("shutdown", 0)}
    assert app.transfers() == []
    for received in engine.requests():
        received.wait_closed()


def test_calls_that_end_within_the_grace_are_answered_whole(mortal: Gateway, engine: ScriptedEngine) -> None:
    app = mortal.new_app()
    head, role, *rest = wire.stream_reply(wire.chat_events(["a"], prompt=3, completion=1))
    engine.always(lambda _: [head, role, rest[0], Pause("end"), *rest[1:]])
    (process,) = mortal.processes
    with open_streams(mortal, app, 10) as callers, Caller(mortal) as idle:
        process.send_signal(signal.SIGTERM)
        idle.wait_closed()
        engine.go("end")
        for caller in callers:
            assert caller.read_chunks().endswith(wire.DONE)
            caller.wait_closed()
        assert process.wait(GRACE + 3) == 0
    rows = app.usage_rows(10)
    assert {row["outcome"] for row in rows} == {"completed"}
    assert len(app.transfers()) == 10


def test_sigterm_while_calls_wait_for_their_first_byte_answers_503(
    mortal: Gateway, engine: ScriptedEngine
) -> None:
    app = mortal.new_app()
    engine.always(lambda _: [Hold()])
    (process,) = mortal.processes
    with Caller(mortal) as stream, Caller(mortal) as whole:
        stream.send(request(app, ask()))
        whole.send(request(app, ask(stream=False)))
        engine.wait_requests(2)
        process.send_signal(signal.SIGTERM)
        for caller in (stream, whole):
            reply = caller.read_reply()
            assert reply.status == 503
            assert reply.json()["error"]["code"] == "shutting_down"
            assert int(reply.headers["retry-after"]) >= 1
            caller.wait_closed()
        assert process.wait(GRACE + 3) == 0
    assert {(row["outcome"], row["charge"]) for row in app.usage_rows(2)} == {("shutdown", 0)}


def test_callers_that_do_not_read_do_not_hold_up_the_end(mortal: Gateway, engine: ScriptedEngine) -> None:
    app = mortal.new_app()
    flood = wire.chunk(wire.text("x" * 1000) * 20)
    engine.always(lambda _: [BEGUN, Repeat(flood, 1000), Hold()])
    (process,) = mortal.processes
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(mortal, receive_buffer=4096)) for _ in range(5)]
        for caller in callers:
            caller.send(request(app, ask()))
        received = engine.wait_requests(5)
        until(lambda: all(one.sent > 1 << 20 for one in received), "all buffers are filling", 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE + 15) == 0
    assert {(row["outcome"], row["charge"]) for row in app.usage_rows(5)} == {("shutdown", 0)}


def test_a_killed_process_leaves_one_row_per_call(mortal: Gateway, engine: ScriptedEngine) -> None:
    app = mortal.new_app()
    with Caller(mortal) as caller:
        for _ in range(5):
            assert caller.ask(app, ask()).status == 200
    engine.always(lambda _: [BEGUN, Hold()])
    (process,) = mortal.processes
    with open_streams(mortal, app, 20) as callers:
        process.kill()
        for caller in callers:
            with pytest.raises(BrokenOff):
                caller.read_chunks()
    rows = app.usage_rows(25)
    outcomes = [(row["outcome"], row["charge"] > 0) for row in rows]
    assert sorted(outcomes) == [("completed", True)] * 5 + [("interrupted", False)] * 20
    charges = [transfer for transfer in app.transfers() if transfer["kind"] == "charge"]
    assert len(charges) == 5
    # Another process takes over, on the same books.
    engine.always(None)
    mortal.start_api()

    def served() -> bool:
        with contextlib.suppress(BrokenOff, ConnectionError), Caller(mortal) as caller:
            return caller.ask(app, ask()).status == 200
        return False

    until(served, "the next process serves")
    app.usage_rows(26)


def test_the_drainer_may_be_killed_at_any_moment(mortal: Gateway, engine: ScriptedEngine) -> None:
    app = mortal.new_app()
    assert mortal.drainer is not None
    with Caller(mortal) as caller:
        for number in range(200):
            assert caller.ask(app, ask(stream=number % 2 == 0)).status == 200
            if number % 40 == 20:
                mortal.drainer.kill()
                mortal.drainer.wait()
                mortal.start_drainer()
    assert {row["outcome"] for row in app.usage_rows(200)} == {"completed"}
    assert len(app.transfers()) == 200
