"""Streams reach the caller byte for byte, are metered whole, and never look finished when they are not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caller import Caller, Reply, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import (
    Close,
    Hold,
    Received,
    Repeat,
    Reset,
    ScriptedEngine,
    Step,
    Write,
    byte_by_byte,
)
from tests.gateway import App, Gateway, running_gateway
from tests.waiting import until
from tollgate.servers import Servers

ODD_TEXT = "你🌍é\u2028 \U0001f469\u200d\U0001f4bb"
IDLE_LIMIT = 0.5  # seconds
CALLER_LIMIT = 3.0  # seconds


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}


def whole_stream(text: str = ODD_TEXT) -> list[bytes]:
    return [wire.role(), wire.text(text), wire.finish(), wire.usage(7, 3), wire.DONE]


def seen_by_caller(events: list[bytes]) -> bytes:
    """What a caller who did not ask for usage gets of a stream."""
    return b"".join(event for event in events if b'"choices":[]' not in event)


def assert_metered(app: App, count: int, prompt: int, completion: int) -> None:
    rows = app.usage_rows(count)
    assert {(row["prompt_tokens"], row["completion_tokens"]) for row in rows} == {(prompt, completion)}
    assert {(row["outcome"], row["usage_source"]) for row in rows} == {("completed", "engine")}


# The network cuts where it likes


def test_the_callers_bytes_are_the_same_wherever_the_network_cuts_the_engines_reply(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    reply = b"".join(wire.stream_reply(whole_stream()))
    with Caller(gateway) as caller:
        for cut in range(1, len(reply)):
            engine.script(Write(reply, (cut,)))
            assert caller.ask(app, ask()).body == seen_by_caller(whole_stream()), f"cut at {cut}"
    assert_metered(app, len(reply) - 1, 7, 3)


def test_the_callers_bytes_are_the_same_wherever_an_event_is_cut_into_chunks(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    events = b"".join(whole_stream())
    with Caller(gateway) as caller:
        for cut in range(1, len(events)):
            engine.script(
                wire.stream_head() + wire.chunk(events[:cut]),
                Write(wire.chunk(events[cut:]) + wire.END_OF_CHUNKS),
            )
            assert caller.ask(app, ask()).body == seen_by_caller(whole_stream()), f"cut at {cut}"
    assert_metered(app, len(events) - 1, 7, 3)


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until-close"])
def test_one_byte_per_write_changes_nothing(
    gateway: Gateway, app: App, engine: ScriptedEngine, chunked: bool
) -> None:
    events = whole_stream()
    if chunked:
        engine.script(byte_by_byte(b"".join(wire.stream_reply(events))))
    else:
        engine.script(byte_by_byte(wire.stream_head(chunked=False) + b"".join(events)), Close())
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).body == seen_by_caller(events)
    assert_metered(app, 1, 7, 3)


@pytest.mark.parametrize(
    "ending", [b"\n\n", b"\r\n\r\n", b"\r\r"], ids=["lf", "crlf", "cr"]
)  # all three end an event (WHATWG HTML, 9.2.6)
def test_every_legal_line_end_is_understood(
    gateway: Gateway, app: App, engine: ScriptedEngine, ending: bytes
) -> None:
    events = [event[:-2] + ending for event in whole_stream()]
    engine.script(*wire.stream_reply(events))
    with Caller(gateway) as caller:
        body = caller.ask(app, ask()).body
    assert b"usage" not in body
    assert ODD_TEXT.encode() in body
    assert_metered(app, 1, 7, 3)


def test_comments_and_unknown_fields_pass_without_harm(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    role, text, finish, usage, done = whole_stream()
    odd = [b": keep-alive\n\n", b"id: 7\nretry: 10\n" + text]
    engine.script(*wire.stream_reply([role, *odd, finish, usage, done]))
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).body == role + b"".join(odd) + finish + done
    assert_metered(app, 1, 7, 3)


def test_a_byte_that_is_no_text_does_not_stall_the_stream(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    role, text, finish, usage, done = whole_stream("a?b")
    broken = text.replace(b"a?b", b"a\xffb")
    engine.script(*wire.stream_reply([role, broken, finish, usage, done]))
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).body == role + broken + finish + done
    assert_metered(app, 1, 7, 3)


# Usage after the finish


@pytest.mark.parametrize("asked", [True, False], ids=["usage-asked", "usage-not-asked"])
@pytest.mark.parametrize("choices", [1, 2])
def test_usage_after_the_last_finish_is_metered_and_shown_only_when_asked_for(
    gateway: Gateway, app: App, engine: ScriptedEngine, asked: bool, choices: int
) -> None:
    events = wire.chat_events(["a", "b"], prompt=3, completion=2, choices=choices)
    engine.script(*wire.stream_reply(events))
    more = {"n": choices} | ({"stream_options": {"include_usage": True}} if asked else {})
    with Caller(gateway) as caller:
        reply = caller.ask(app, ask(**more))
    assert reply.body == (b"".join(events) if asked else seen_by_caller(events))
    assert engine.last().json()["stream_options"] == {"include_usage": True}
    assert_metered(app, 1, 3, 2)


def test_usage_in_the_same_read_as_the_end_is_metered(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    events = wire.chat_events(["a"], prompt=5, completion=1)
    engine.script(wire.stream_head() + wire.chunk(b"".join(events)) + wire.END_OF_CHUNKS)
    with Caller(gateway) as caller:
        assert caller.ask(app, ask()).body == seen_by_caller(events)
    assert_metered(app, 1, 5, 1)


@pytest.mark.parametrize("asked", [True, False], ids=["usage-asked", "usage-not-asked"])
def test_an_engine_that_says_usage_null_on_each_chunk_shows_it_only_when_asked(
    gateway: Gateway, app: App, engine: ScriptedEngine, asked: bool
) -> None:
    events = wire.chat_events(["a", "b"], prompt=3, completion=2)
    null = [event.replace(b'"token_ids":null}]}', b'"token_ids":null}],"usage":null}') for event in events]
    assert null != events
    engine.script(*wire.stream_reply(null))
    more = {"stream_options": {"include_usage": True}} if asked else {}
    with Caller(gateway) as caller:
        body = caller.ask(app, ask(**more)).body
    assert body == (b"".join(null) if asked else seen_by_caller(events))
    assert_metered(app, 1, 3, 2)


def test_usage_inside_the_finish_chunk_is_metered(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    last = wire.event({**wire.delta({}, finish="stop"), "usage": wire.usage_of(4, 1)})
    engine.script(*wire.stream_reply([wire.role(), wire.text("a"), last, wire.DONE]))
    with Caller(gateway) as caller:
        reply = caller.ask(app, ask())
    assert [chunk["choices"][0]["finish_reason"] for chunk in reply.chunks()] == [None, None, "stop"]
    assert b"usage" not in reply.body
    assert_metered(app, 1, 4, 1)


# A stream that dies early


BEGUN = [wire.stream_head(), wire.chunk(wire.role()), wire.chunk(wire.text("a"))]
UNFINISHED: dict[str, list[Step]] = {
    "closes": [*BEGUN, Close()],
    "resets": [*BEGUN, Reset()],
    "ends-without-done": [*BEGUN, wire.END_OF_CHUNKS],
    "ends-mid-event": [*BEGUN, wire.chunk(b'data: {"choices":[{"ind'), wire.END_OF_CHUNKS],
    "closes-an-unchunked-stream": [
        wire.stream_head(chunked=False) + wire.role() + wire.text("a"),
        Close(),
    ],
    "error-event-then-holds": [*BEGUN, wire.chunk(wire.error_event()), Hold()],
    "given-up-by-the-engine": [
        *BEGUN,
        wire.chunk(wire.finish("abort") + wire.usage(3, 1) + wire.DONE),
        wire.END_OF_CHUNKS,
    ],
    "done-without-finish": [*BEGUN, wire.chunk(wire.DONE), wire.END_OF_CHUNKS],
    "silent": [*BEGUN, Hold()],
    "one-choice-of-two-unfinished": [
        *BEGUN,
        wire.chunk(wire.text("b", 1) + wire.finish("stop", 0) + wire.DONE),
        wire.END_OF_CHUNKS,
    ],
    "breaks-http": [*BEGUN, b"this is no chunk\r\n", Hold()],
}


@pytest.fixture(scope="module")
def impatient(
    servers: Servers, database: str, _engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("impatient")
    patience = {"idle": IDLE_LIMIT, "first-byte": IDLE_LIMIT, "caller": CALLER_LIMIT}
    options = tuple(f"--{name}-timeout={seconds}" for name, seconds in patience.items())
    with running_gateway(servers, database, folder, engines=[_engine.url], options=options) as gateway:
        yield gateway


@pytest.mark.parametrize("how", UNFINISHED)
def test_a_stream_that_dies_early_ends_with_an_error_event(
    impatient: Gateway, engine: ScriptedEngine, how: str
) -> None:
    app = impatient.new_app()
    engine.script(*UNFINISHED[how])
    body = ask(temperature=0, n=2) if how == "one-choice-of-two-unfinished" else ask(temperature=0)
    with Caller(impatient) as caller:
        reply = caller.ask(app, body)
        caller.wait_closed()
    *answer, last = reply.chunks()
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in reply.body
    texts = [choice["delta"].get("content") for chunk in answer for choice in chunk["choices"]]
    assert texts[:2] == ["", "a"]
    if how != "one-choice-of-two-unfinished":
        assert not any(choice["finish_reason"] for chunk in answer for choice in chunk["choices"])
    (row,) = app.usage_rows(1)
    assert row["outcome"] == ("timed_out" if how == "silent" else "engine_failed")
    assert row["charge"] == 0
    assert row["completion_tokens"] >= 1
    assert app.transfers() == []
    if how in ("error-event-then-holds", "silent", "breaks-http"):
        engine.last().wait_closed()
    # Half an answer is not remembered: the same prompt goes to the engine again.
    with Caller(impatient) as caller:
        again: Reply = caller.ask(app, body)
    assert again.body.endswith(wire.DONE)
    assert len(engine.requests()) == 2


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_engine_that_never_begins_to_answer_is_given_up(
    impatient: Gateway, engine: ScriptedEngine, stream: bool
) -> None:
    app = impatient.new_app()
    engine.script(Hold())
    with Caller(impatient) as caller:
        reply = caller.ask(app, ask(stream=stream))
    assert (reply.status, reply.json()["error"]["code"]) == (504, "engine_timeout")
    engine.last().wait_closed()
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["status"], row["charge"]) == ("timed_out", 504, 0)


def test_a_whole_answer_that_is_cut_is_no_answer(impatient: Gateway, engine: ScriptedEngine) -> None:
    app = impatient.new_app()
    reply = wire.reply(wire.chat_answer("hello world"))
    # The only replica fails twice: there is no more that a gateway may try.
    for _ in range(2):
        engine.script(reply[:-20], Close())
    with Caller(impatient) as caller:
        answer = caller.ask(app, ask(stream=False))
    assert answer.status == 502
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["charge"]) == ("engine_failed", 0)


def test_a_whole_answer_that_the_engine_gave_up_is_no_answer(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    for _ in range(2):
        engine.script(wire.reply(wire.chat_answer("hello", reason="abort")))
    with Caller(impatient) as caller:
        answer = caller.ask(app, ask(stream=False))
    assert answer.status == 502
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["charge"]) == ("engine_failed", 0)


def test_choices_that_share_an_event_are_understood(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    def both(change: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [wire.delta(change, finish=finish, index=index)["choices"][0] for index in (0, 1)]
        return wire.event({**wire.delta({}), "choices": choices})

    events = [both({"role": "assistant", "content": ""}), both({"content": "a"}), both({"content": "b"})]
    events += [wire.finish("stop", 0), wire.finish("stop", 1), wire.usage(3, 4), wire.DONE]
    for pieces in ([2, 2], [1, 1, 3]):  # events in each read
        reads, at = [], 0
        for count in (*pieces, len(events)):
            reads.append(b"".join(events[at : at + count]))
            at += count
        engine.script(wire.stream_head(), *[Write(wire.chunk(read)) for read in reads if read], b"0\r\n\r\n")
        with Caller(gateway) as caller:
            assert caller.ask(app, ask(n=2)).body == seen_by_caller(events)
    assert_metered(app, 2, 3, 4)


def flooding(engine: ScriptedEngine) -> None:
    """More than the kernel's buffers hold, so that a caller who does not read holds the engine back."""
    piece = wire.chunk(wire.text("z" * 60_000))
    ending = wire.chunk(wire.finish() + wire.usage(4, 200) + wire.DONE) + wire.END_OF_CHUNKS
    engine.script(wire.stream_head() + wire.chunk(wire.role()), Repeat(piece, 400), ending)


def test_a_caller_that_reads_late_is_not_taken_for_a_silent_engine(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    flooding(engine)
    with Caller(impatient, receive_buffer=4096) as slow:
        slow.send(request(app, ask()))
        slow.read_head()
        stands_still_for(engine.last(), IDLE_LIMIT * 2)
        assert slow.read_chunks().endswith(wire.DONE)
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["completion_tokens"]) == ("completed", 200)


def test_a_caller_that_reads_no_more_is_cut_and_pays_for_what_was_delivered(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    flooding(engine)
    with Caller(impatient, receive_buffer=4096) as stuck:
        stuck.send(request(app, ask()))
        engine.last().wait_closed()
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["usage_source"]) == ("caller_left", "counted")
    assert row["completion_tokens"] > 0
    assert row["charge"] > 0


def stands_still_for(received: Received, seconds: float) -> None:
    """Waits until the engine has got nothing off its hands for so long."""
    since, sent = time.monotonic(), -1

    def held() -> bool:
        nonlocal since, sent
        if received.sent != sent:
            since, sent = time.monotonic(), received.sent
        return time.monotonic() - since > seconds

    until(held, "the engine is held back")
