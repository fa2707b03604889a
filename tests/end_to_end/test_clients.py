"""The official clients of OpenAI and Anthropic work unchanged, and each call stands in the books."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest

from tests.caller import Caller, request
from tests.fakes import typed_wire as typed
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Close, Reset, ScriptedEngine
from tests.gateway import App, Gateway

MESSAGES: Any = [{"role": "user", "content": "three words here"}]
PROMPT_TOKENS = 4


@pytest.fixture
def client(gateway: Gateway, app: App, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=app.key, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(gateway: Gateway, app: App, engine: ScriptedEngine) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=app.key, max_retries=0) as client:
        yield client


def assert_one_row(app: App, endpoint: str, prompt: int, completion: int) -> None:
    (row,) = app.usage_rows(1)
    assert (row["endpoint"], row["outcome"], row["usage_source"]) == (endpoint, "completed", "engine")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, completion)


# OpenAI


def test_chat(client: openai.OpenAI, app: App) -> None:
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES, max_tokens=7)
    assert answer.choices[0].message.content == "hello " * 7
    assert answer.usage is not None
    assert_one_row(app, "chat/completions", answer.usage.prompt_tokens, answer.usage.completion_tokens)


@pytest.mark.parametrize("asked", [True, False], ids=["usage-asked", "usage-not-asked"])
def test_streamed_chat(client: openai.OpenAI, app: App, asked: bool) -> None:
    more: Any = {"stream_options": {"include_usage": True}} if asked else {}
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_tokens=7, stream=True, **more
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello " * 7
    assert len({chunk.id for chunk in chunks}) == 1
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    if asked:
        assert [(u.prompt_tokens, u.completion_tokens) for u in usages] == [(PROMPT_TOKENS, 7)]
        assert chunks[-1].choices == []
    else:
        assert usages == []
    assert_one_row(app, "chat/completions", PROMPT_TOKENS, 7)


def test_twenty_chats_at_once(client: openai.OpenAI, app: App) -> None:
    def chat(number: int) -> int:
        if number % 2:
            answer = client.chat.completions.create(model="scripted", messages=MESSAGES, max_tokens=number)
            return len((answer.choices[0].message.content or "").split())
        stream = client.chat.completions.create(
            model="scripted", messages=MESSAGES, max_tokens=number, stream=True
        )
        return len("".join(c.choices[0].delta.content or "" for c in stream).split())

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(chat, range(1, 21))) == list(range(1, 21))
    rows = app.usage_rows(20)
    assert sorted(row["completion_tokens"] for row in rows) == list(range(1, 21))
    assert sorted(row["stream"] for row in rows) == [False] * 10 + [True] * 10


def test_models(client: openai.OpenAI, app: App) -> None:
    assert "scripted" in [model.id for model in client.models.list()]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("nobody")
    assert refused.value.code == "model_not_found"
    app.usage_rows(0)


def test_completions(client: openai.OpenAI, app: App, engine: ScriptedEngine) -> None:
    engine.script(
        wire.reply(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": wire.CREATED,
                "model": "scripted",
                "choices": [{"index": 0, "text": " a b", "logprobs": None, "finish_reason": "stop"}],
                "usage": wire.usage_of(5, 2),
            }
        )
    )
    answer = client.completions.create(model="scripted", prompt="once upon a time")
    assert answer.choices[0].text == " a b"
    assert_one_row(app, "completions", 5, 2)


def test_embeddings(client: openai.OpenAI, app: App, engine: ScriptedEngine) -> None:
    engine.script(
        wire.reply(
            {
                "object": "list",
                "model": "scripted",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
                "usage": {"prompt_tokens": 6, "total_tokens": 6},
            }
        )
    )
    answer = client.embeddings.create(model="scripted", input="some text", encoding_format="float")
    assert answer.data[0].embedding == [0.5, -1.0]
    assert_one_row(app, "embeddings", 6, 0)


def test_embeddings_of_a_chat_only_model_are_a_clear_error(
    gateway: Gateway, client: openai.OpenAI, app: App, engine: ScriptedEngine
) -> None:
    gateway.register("chat-only", [engine.url], endpoints=["chat/completions"])

    def refusal() -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as refused:
            client.embeddings.create(model="chat-only", input="text")
        return refused.value

    error = refusal()
    while error.status_code == 404:  # until the process has heard of the new model
        error = refusal()
    assert error.status_code == 400
    assert error.param == "model"
    assert "chat-only" in error.message
    assert "embeddings" in error.message
    app.usage_rows(0)


def test_responses(client: openai.OpenAI, app: App, engine: ScriptedEngine) -> None:
    engine.script(wire.reply(typed.response("a b")))
    assert client.responses.create(model="scripted", input="hi").output_text == "a b"
    assert_one_row(app, "responses", 3, 2)


def test_streamed_responses(client: openai.OpenAI, app: App, engine: ScriptedEngine) -> None:
    engine.script(*wire.stream_reply(typed.response_events(["a ", "b ", "c"])))
    stream = client.responses.create(model="scripted", input="hi", stream=True)
    events = list(stream)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "a b c"
    assert events[-1].type == "response.completed"
    assert_one_row(app, "responses", 3, 3)


def test_a_wrong_key_raises_what_the_client_has_for_it(gateway: Gateway) -> None:
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert refused.value.code == "invalid_api_key"
    assert refused.value.request_id


def test_a_broken_off_stream_raises_in_the_client(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script(
        wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(wire.text("half an ans")), Close()
    )
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    texts: list[str] = []
    with pytest.raises(openai.APIError) as broken:
        texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert texts == ["", "half an ans"]
    assert not isinstance(broken.value, openai.APIConnectionError)


def test_an_engines_400_is_a_bad_request_in_the_client(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script(wire.reply(wire.error_body("maximum context length is 2048 tokens"), 400))
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048"):
        client.chat.completions.create(model="scripted", messages=MESSAGES)


def test_a_refused_budget_is_not_tried_again(gateway: Gateway, engine: ScriptedEngine) -> None:
    poor = gateway.new_app(budget=Decimal(0))
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=poor.key) as client,
        pytest.raises(openai.RateLimitError) as refused,
    ):
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert engine.requests() == []
    poor.usage_rows(0)


# Anthropic


def test_messages(claude: anthropic.Anthropic, app: App, engine: ScriptedEngine) -> None:
    engine.script(wire.reply(typed.message("a b", prompt=10, completion=2, cached=4)))
    answer = claude.messages.create(model="scripted", max_tokens=20, messages=MESSAGES)
    assert [block.text for block in answer.content if block.type == "text"] == ["a b"]
    assert_one_row(app, "messages", 10, 2)
    (row,) = app.usage_rows(1)
    assert row["cached_tokens"] == 4
    assert row["charge"] == app.gateway.price.charge(10, 2, cached=4)


def test_streamed_messages(claude: anthropic.Anthropic, app: App, engine: ScriptedEngine) -> None:
    engine.script(*wire.stream_reply(typed.message_events(["a ", "你🌍"], prompt=9)))
    with claude.messages.stream(model="scripted", max_tokens=20, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "a 你🌍"
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 2)
    assert_one_row(app, "messages", 9, 2)


def test_messages_are_refused_in_anthropics_shape(
    gateway: Gateway, claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="nobody", max_tokens=5, messages=MESSAGES)
    body: Any = unknown.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["request_id"] == unknown.value.response.headers["request-id"]
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="scripted", max_tokens=5, messages=MESSAGES)


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_both_ways_to_send_a_key_work_on_both_wires(
    gateway: Gateway, app: App, engine: ScriptedEngine, header: str
) -> None:
    sent = request(app, {"model": "scripted", "messages": MESSAGES})
    if header == "x-api-key":
        sent = sent.replace(b"Authorization: Bearer ", b"x-api-key: ")
    with Caller(gateway) as caller:
        caller.send(sent)
        assert caller.read_reply().status == 200


@pytest.mark.parametrize("how", ["reset", "no stop reason"])
def test_a_broken_off_stream_of_messages_raises_in_the_client(
    claude: anthropic.Anthropic, app: App, engine: ScriptedEngine, how: str
) -> None:
    events = typed.message_events(["a ", "b "], stops=False)
    if how == "reset":
        engine.script(*[wire.stream_head(), *(wire.chunk(event) for event in events[:3])], Reset())
    else:
        engine.script(*wire.stream_reply(events))
    with (
        pytest.raises(anthropic.APIError),
        claude.messages.stream(model="scripted", max_tokens=20, messages=MESSAGES) as stream,
    ):
        stream.until_done()
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["charge"]) == ("engine_failed", 0)
