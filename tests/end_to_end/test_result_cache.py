"""Equal prompts of one app are answered from the cache: in the shape asked for, with a row, at no charge."""

from typing import Any

import pytest

from tests.caller import Caller, Reply, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Hold, ScriptedEngine
from tests.gateway import App, Gateway

BASE: dict[str, Any] = {
    "model": "scripted",
    "temperature": 0,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "what is it?"}],
}


def ask(gateway: Gateway, app: App, body: Any, **how: Any) -> Reply:
    with Caller(gateway) as caller:
        reply = caller.ask(app, body, **how)
    assert reply.status == 200, reply.body
    return reply


def text_of(reply: Reply) -> str:
    if reply.headers["content-type"] == "application/json":
        return str(reply.json()["choices"][0]["message"]["content"])
    assert reply.body.endswith(wire.DONE)
    return "".join(c["delta"].get("content") or "" for chunk in reply.chunks() for c in chunk["choices"])


def answers(engine: ScriptedEngine, text: str, **more: Any) -> None:
    """Whatever is asked, streamed or not, the engine says this."""
    words = text.split(" ")
    pieces = [word + " " for word in words[:-1]] + words[-1:]

    def choose(received: Any) -> Any:
        if received.json().get("stream"):
            return wire.stream_reply(wire.chat_events(pieces, prompt=5, completion=7, **more))
        return [wire.reply(wire.chat_answer(text, prompt=5, completion=7, **more))]

    engine.always(choose)


@pytest.mark.parametrize("second", [False, True], ids=["then-whole", "then-stream"])
@pytest.mark.parametrize("first", [False, True], ids=["whole", "stream"])
def test_a_hit_comes_in_the_shape_asked_for_with_a_row_of_its_own_and_no_charge(
    gateway: Gateway, app: App, engine: ScriptedEngine, first: bool, second: bool
) -> None:
    answers(engine, "an answer of 你🌍 words")
    miss = ask(gateway, app, BASE | {"stream": first})
    hit = ask(gateway, app, BASE | {"stream": second})
    assert text_of(miss) == text_of(hit) == "an answer of 你🌍 words"
    assert (miss.headers["x-cache"], hit.headers["x-cache"]) == ("miss", "hit")
    assert len(engine.requests()) == 1
    ids = {reply.json()["id"] if not stream else reply.chunks()[0]["id"]
           for reply, stream in ((miss, first), (hit, second))}  # fmt: skip
    assert len(ids) == 2
    bought, found = app.usage_rows(2)
    assert (bought["cache"], bought["completion_tokens"]) == ("miss", 7)
    assert (found["cache"], found["charge"], found["outcome"]) == ("hit", 0, "completed")
    assert len(app.transfers()) == 1


@pytest.mark.parametrize("asked", [True, False], ids=["usage-asked", "usage-not-asked"])
def test_a_streamed_hit_shows_usage_only_when_asked(
    gateway: Gateway, app: App, engine: ScriptedEngine, asked: bool
) -> None:
    answers(engine, "some words")
    ask(gateway, app, BASE)
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": asked}}
    chunks = ask(gateway, app, BASE | more).chunks()
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages] == [(5, 7)] * asked
    assert (chunks[-1]["choices"] == []) is asked
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_what_cannot_change_the_answer_does_not_count(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    answers(engine, "same")
    ask(gateway, app, BASE)
    respelled = (
        b'{ "messages":[{"content":"what is it?","role":"user"}],\n'
        b'"max_tokens":9,"temperature":0, "model":"scripted"}'
    )
    for body in (respelled, BASE | {"user": "u-2"}, BASE | {"metadata": {"a": "b"}}):
        assert ask(gateway, app, body).headers["x-cache"] == "hit"
    assert len(engine.requests()) == 1


DIFFERENT: dict[str, dict[str, Any]] = {
    "text": {"messages": [{"role": "user", "content": "what is it"}]},
    "role": {"messages": [{"role": "system", "content": "what is it?"}]},
    "name": {"messages": [{"role": "user", "content": "what is it?", "name": "a"}]},
    "system prompt": {"messages": [{"role": "system", "content": "s"}, *BASE["messages"]]},
    "tool_call_id": {"messages": [*BASE["messages"], {"role": "tool", "tool_call_id": "c2", "content": "7"}]},
    "max_tokens": {"max_tokens": 8},
    "top_p": {"top_p": 0.5},
    "seed": {"seed": 7},
    "stop": {"stop": ["x"]},
    "n": {"n": 2},
    "tools": {"tools": []},
    "tool_choice": {"tool_choice": "none"},
    "response_format": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": True},
    "an unknown field": {"x_new": {"a": [1, None]}},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_may_change_the_answer_is_a_miss(
    gateway: Gateway, app: App, engine: ScriptedEngine, what: str
) -> None:
    ask(gateway, app, BASE)
    assert ask(gateway, app, BASE | DIFFERENT[what]).headers["x-cache"] == "miss"
    assert len(engine.requests()) == 2


def test_no_app_sees_anothers_answers(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    answers(engine, "mine")
    ask(gateway, app, BASE)
    assert ask(gateway, gateway.new_app(), BASE).headers["x-cache"] == "miss"
    assert len(engine.requests()) == 2


@pytest.mark.parametrize(
    ("changes", "header", "cached"),
    [
        ({"temperature": 0.7}, None, False),
        ({"temperature": None}, None, False),
        ({"temperature": 0.7, "seed": 1}, None, True),
        ({"temperature": 0.7}, "on", True),
        ({}, "off", False),
        ({}, "no-store", False),
    ],
)
def test_only_calls_meant_to_repeat_or_that_ask_for_it_are_cached(
    gateway: Gateway,
    app: App,
    engine: ScriptedEngine,
    changes: dict[str, Any],
    header: str | None,
    cached: bool,
) -> None:
    headers = {} if header is None else {"x-tollgate-cache": header}
    replies = [ask(gateway, app, BASE | changes, headers=headers) for _ in range(2)]
    seen = [reply.headers.get("x-cache") for reply in replies]
    assert seen == (["miss", "hit"] if cached else [None, None])
    assert [row["cache"] for row in app.usage_rows(2)] == (["miss", "hit"] if cached else ["off", "off"])


def test_a_stream_that_its_caller_left_is_not_kept(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    engine.script(wire.stream_head() + wire.chunk(wire.role() + wire.text("half")), Hold())
    with Caller(gateway) as caller:
        caller.send(request(app, BASE | {"stream": True}))
        caller.read_head()
        caller.read_until(wire.text("half"))
    engine.last().wait_closed()
    app.usage_rows(1)
    assert ask(gateway, app, BASE).headers["x-cache"] == "miss"


@pytest.mark.parametrize("reason", ["content_filter"])
def test_an_answer_that_ended_for_another_reason_is_not_kept(
    gateway: Gateway, app: App, engine: ScriptedEngine, reason: str
) -> None:
    answers(engine, "cut", reason=reason)
    for stream in (True, False):
        ask(gateway, app, BASE | {"stream": stream})
    assert len(engine.requests()) == 2


def test_tool_calls_come_back_whole_from_a_stream(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    def call(**function: str) -> bytes:
        first = {"id": "c1", "type": "function"} if "name" in function else {}
        return wire.event(wire.delta({"tool_calls": [{"index": 0, **first, "function": function}]}))

    events = [wire.role(), call(name="f", arguments='{"a'), call(arguments='":1}'), wire.finish("tool_calls")]
    engine.script(*wire.stream_reply([*events, wire.usage(5, 7), wire.DONE]))
    ask(gateway, app, BASE | {"stream": True})
    whole = ask(gateway, app, BASE)
    assert whole.headers["x-cache"] == "hit"
    (choice,) = whole.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
