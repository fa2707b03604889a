"""Another replica may try while the caller has not got a byte; whatever happens, a call is charged once."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.caller import Caller, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Close, Hold, Received, Reset, ScriptedEngine, Step
from tests.gateway import Gateway, running_gateway
from tests.waiting import until
from tollgate.servers import Servers

PROMPT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[ScriptedEngine, ScriptedEngine]]:
    with ScriptedEngine() as first, ScriptedEngine() as second:
        yield first, second


@pytest.fixture(scope="module")
def pair(
    servers: Servers,
    database: str,
    engines: tuple[ScriptedEngine, ScriptedEngine],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """A gateway before two replicas."""
    folder = tmp_path_factory.mktemp("pair")
    with running_gateway(servers, database, folder, engines=[engine.url for engine in engines]) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _clean(engines: tuple[ScriptedEngine, ScriptedEngine]) -> None:
    for engine in engines:
        engine.forget()


def fail_first(engines: tuple[ScriptedEngine, ScriptedEngine], *script: Step) -> None:
    """Whichever replica is asked first fails as scripted; the next request is answered well."""
    seen: list[int] = []

    def choose(_: Received) -> list[Step]:
        seen.append(1)
        good = wire.stream_reply(wire.chat_events(["good ", "answer"], prompt=3, completion=2))
        return list(script) if len(seen) == 1 else list(good)

    for engine in engines:
        engine.always(choose)


BEFORE_OUTPUT: dict[str, list[Step]] = {
    "before any byte": [Reset()],
    "closed before any byte": [Close()],
    "within the head": [b"HTTP/1.1 200 OK\r\ncontent-ty", Close()],
    "after the head": [wire.stream_head(), Reset()],
    "after the role chunk": [wire.stream_head() + wire.chunk(wire.role()), Reset()],
    "status 500": [wire.reply(wire.error_body("died", 500, "InternalServerError"), 500)],
    "an error event first": [wire.stream_head() + wire.chunk(wire.error_event()), Close()],
}


@pytest.mark.parametrize("when", BEFORE_OUTPUT)
def test_a_replica_that_fails_before_output_is_replaced_and_the_call_is_charged_once(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], when: str
) -> None:
    app = pair.new_app()
    fail_first(engines, *BEFORE_OUTPUT[when])
    with Caller(pair) as caller:
        reply = caller.ask(app, {"model": "scripted", "stream": True, "messages": PROMPT})
    texts = [choice["delta"].get("content") for chunk in reply.chunks() for choice in chunk["choices"]]
    assert texts == ["", "good ", "answer", None]
    assert reply.body.endswith(wire.DONE)
    assert sorted(len(engine.requests()) for engine in engines) == [1, 1]
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["prompt_tokens"], row["completion_tokens"]) == ("completed", 3, 2)
    assert [transfer["amount"] for transfer in app.transfers()] == [pair.price.charge(3, 2)]
    attempts = pair.rows("SELECT * FROM attempts WHERE call_id = %s ORDER BY number", row["id"])
    assert [(attempt["kind"], attempt["outcome"]) for attempt in attempts] == [
        ("call", "engine_failed"),
        ("failover", "completed"),
    ]
    assert attempts[1]["replica_id"] == row["replica_id"] != attempts[0]["replica_id"]


TOOL_ARGUMENTS = wire.event(
    wire.delta({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a'}}]})
)


@pytest.mark.parametrize("begun", [wire.text("Hel"), TOOL_ARGUMENTS], ids=["text", "tool arguments"])
def test_after_output_nothing_is_started_again(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], begun: bytes
) -> None:
    app = pair.new_app()
    fail_first(engines, wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(begun), Reset())
    with Caller(pair) as caller:
        reply = caller.ask(app, {"model": "scripted", "stream": True, "messages": PROMPT})
        caller.wait_closed()
    assert reply.body.startswith(wire.role() + begun + b'data: {"error":')
    assert len(reply.events()) == 3
    assert sorted(len(engine.requests()) for engine in engines) == [0, 1]
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["charge"]) == ("engine_failed", 0)


def test_a_refusal_is_not_tried_elsewhere(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    app = pair.new_app()
    fail_first(engines, wire.reply(wire.error_body("too long"), 400))
    with Caller(pair) as caller:
        assert caller.ask(app, {"model": "scripted", "messages": PROMPT}).status == 400
    assert sum(len(engine.requests()) for engine in engines) == 1


def test_a_replica_that_is_down_is_passed_over(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    app = pair.new_app()
    engines[0].down()
    try:
        with Caller(pair) as caller:
            for _ in range(6):
                assert caller.ask(app, {"model": "scripted", "messages": PROMPT}).status == 200
    finally:
        engines[0].up()
    rows = app.usage_rows(6)
    assert {row["outcome"] for row in rows} == {"completed"}
    assert len(app.transfers()) == 6
    assert len(engines[1].requests()) == 6


def test_no_replica_at_all_is_503_with_a_time_to_come_back(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    app = pair.new_app()
    for engine in engines:
        engine.down()
    try:
        with Caller(pair) as caller:
            for stream in (True, False):
                reply = caller.ask(app, {"model": "scripted", "stream": stream, "messages": PROMPT})
                assert reply.status == 503
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.json()["error"]["code"] == "engine_unreachable"
    finally:
        for engine in engines:
            engine.up()
    rows = app.usage_rows(2)
    assert {(row["outcome"], row["charge"]) for row in rows} == {("engine_failed", 0)}


def test_a_connection_that_the_engine_closed_while_it_rested_harms_no_call(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    """The engine says nothing and closes kept connections as soon as the next request comes on them."""
    app = pair.new_app()
    used: set[int] = set()

    def once_per_connection(request: Received) -> list[Step]:
        connection = request.connection
        if connection in used:
            return [Reset()]
        used.add(connection)
        return [wire.reply(wire.chat_answer("a b"))]

    for engine in engines:
        engine.always(once_per_connection)
    with Caller(pair) as caller:
        for _ in range(10):
            assert caller.ask(app, {"model": "scripted", "messages": PROMPT}).status == 200
    rows = app.usage_rows(10)
    assert {row["outcome"] for row in rows} == {"completed"}
    assert len(app.transfers()) == 10


def test_calls_are_spread_over_both_replicas(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    app = pair.new_app()

    def both_serve() -> bool:
        assert caller.ask(app, {"model": "scripted", "messages": PROMPT}).status == 200
        return all(engine.requests() for engine in engines)

    with Caller(pair) as caller:
        until(both_serve, "replicas that were down a moment ago serve again")
        before = [len(engine.requests()) for engine in engines]
        for _ in range(10):
            assert caller.ask(app, {"model": "scripted", "messages": PROMPT}).status == 200
    assert [len(engine.requests()) for engine in engines] == [count + 5 for count in before]


def test_calls_that_come_together_are_spread_over_both_replicas_too(
    pair: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine]
) -> None:
    app, other_app = pair.new_app(), pair.new_app()
    with Caller(pair) as caller:  # replicas that were down a moment ago are passed over for a second

        def both_serve() -> bool:
            assert caller.ask(other_app, {"model": "scripted", "messages": PROMPT}).status == 200
            return all(engine.requests() for engine in engines)

        until(both_serve, "both replicas serve")
    for engine in engines:
        engine.forget()
        engine.always(lambda _: [Hold()])
    asked = request(app, {"model": "scripted", "messages": PROMPT})
    with contextlib.ExitStack() as stack:
        # One call makes the other replica the one with fewer: not all that follow may go there.
        first, *others = [stack.enter_context(Caller(pair)) for _ in range(64)]
        first.send(asked)
        until(lambda: sum(len(engine.requests()) for engine in engines) == 1, "the first call runs")
        for other in others:
            other.send(asked)
        until(lambda: sum(len(engine.requests()) for engine in engines) == 64, "all calls run")
        assert [len(engine.requests()) for engine in engines] == [32, 32]
    assert {row["outcome"] for row in app.usage_rows(64)} == {"caller_left"}
