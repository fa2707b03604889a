"""What a body must have, by the API's own types; the error names the field."""

from typing import Any

import orjson
import pytest

from api.errors import InvalidRequest
from api.lane.answer import said_by
from api.lane.dialects.chat import ChatCompletions
from api.lane.dialects.completions import Completions
from api.lane.dialects.dialect import CAP_FIELDS, Dialect
from api.lane.dialects.embeddings import Embeddings
from api.lane.dialects.messages import Messages
from api.lane.dialects.responses import Responses
from api.lane.typed_stream import MessageMeter
from api.lane.usage import Usage

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", "hot", "temperature"),
        ("temperature", True, "temperature"),
        ("seed", 1.5, "seed"),
        ("tools", "x", "tools"),
        ("tool_choice", 5, "tool_choice"),
        ("stop", 5, "stop"),
        ("stream", "yes", "stream"),
        ("stream_options", 5, "stream_options"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_completion_tokens", 1.5, "max_completion_tokens"),
        ("n", 0, "n"),
        ("user", 5, "user"),
        ("user", "x" * 65, "user"),
        ("user", "a\x00b", "user"),
        ("messages", [], "messages"),
        ("messages", [1], "messages[0]"),
        ("messages", [{}], "messages[0].role"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("model", None, "model"),
    ],
)
def test_a_wrong_type_is_a_400_that_names_the_field(field: str, value: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChatCompletions().read(GOOD | {field: value})
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.code


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0, "seed": 0, "presence_penalty": 0.0, "logprobs": False, "tools": []},
        {"temperature": None, "stop": None, "tools": None, "max_tokens": None, "user": None},
        {"x_new": {"a": [1, None]}},
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "user", "content": ""},
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"stop": "x"},
        {"stop": ["x"]},
        {"tool_choice": "auto"},
    ],
)
def test_what_the_api_allows_is_not_judged(more: dict[str, Any]) -> None:
    assert ChatCompletions().read(GOOD | more).model == "m"


def test_media_that_the_gateway_would_have_to_fetch_are_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/secret"}}
    with pytest.raises(InvalidRequest, match="inline"):
        ChatCompletions().read(GOOD | {"messages": [{"role": "user", "content": [part]}]})


def test_an_engine_that_reads_text_only_gets_text_only() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    fields = GOOD | {"messages": [{"role": "user", "content": [part]}]}
    ChatCompletions().read(fields)
    with pytest.raises(InvalidRequest, match="text only"):
        ChatCompletions().refuse_media(fields)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b'{"error":{"message":"Field \'temperature\': [json.exception.type_error.302] must be number"}}',
            ("'temperature' has a wrong type.", "temperature", "refused_by_engine"),
        ),
        (
            b'{"error":{"message":"exceeds the available context size","code":400}}',
            ("exceeds the available context size", None, "context_length_exceeded"),
        ),
        (b'{"error":{"message":"no","param":"n","code":"bad"}}', ("no", "n", "bad")),
        (b'{"error":"no"}', ("no", None, "refused_by_engine")),
        (b"<html>", ("The engine refused this request.", None, "refused_by_engine")),
    ],
)
def test_an_engines_refusal_is_told_in_the_wires_shape(
    body: bytes, said: tuple[str, str | None, str]
) -> None:
    assert said_by(body) == said


def test_each_of_several_prompts_may_fill_the_context() -> None:
    texts = Completions().read({"model": "m", "prompt": ["a", "b", "c"], "n": 2})
    assert (texts.prompts, texts.choices) == (3, 6)
    tokens = Completions().read({"model": "m", "prompt": [1, 2, 3]})
    assert (tokens.prompts, tokens.choices) == (1, 1)
    assert Embeddings().read({"model": "m", "input": ["a"] * 1000}).prompts == 1000


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (Completions(), {"prompt": "a", "best_of": 2}),
        (Completions(), {"prompt": "a", "n_cmpl": 4}),
        (ChatCompletions(), {"messages": GOOD["messages"], "n_cmpl": 4}),
        (Responses(), {"input": "a", "n": 4}),
        (Responses(), {"input": "a", "previous_response_id": "r"}),
        (Messages(), {"messages": GOOD["messages"], "max_tokens": 5, "n": 4}),
    ],
)
def test_more_output_than_is_held_for_cannot_be_asked_for(dialect: Dialect, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        dialect.read({"model": "m"} | fields)


@pytest.mark.parametrize("dialect", [ChatCompletions(), Completions(), Responses(), Messages()])
def test_no_name_of_an_output_limit_passes_the_cap(dialect: Dialect) -> None:
    fields = GOOD | {"prompt": "a", "input": "a"} | dict.fromkeys(CAP_FIELDS, 100_000)
    body = orjson.dumps(fields)
    sent = orjson.loads(dialect.edits(dialect.read(fields), 50, "m").apply(body))
    assert {name: sent[name] for name in CAP_FIELDS if name in sent} == dict.fromkeys(dialect.cap_fields, 50)


def test_a_messages_stream_that_is_left_before_its_output_was_said_is_counted() -> None:
    def event(kind: str, **more: object) -> bytes:
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **more}) + b"\n\n"

    meter = MessageMeter()
    meter.feed(event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 0}}))
    meter.feed(event("content_block_delta", delta={"type": "text_delta", "text": "hi"}))
    assert not meter.reports
    meter.feed(event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}))
    assert meter.reports
    assert meter.usage == Usage(5, 0, 2, 0)
