"""What a body must have, by the API's own types; the error names the field."""

from typing import Any

import pytest

from api.errors import InvalidRequest
from api.lane.answer import said_by
from api.lane.dialects.chat import ChatCompletions

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
