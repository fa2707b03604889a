"""Tokens counted by the engines' own tokenizers are those that the engines report."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from engine.counting import CannotCount, count, count_prompt, count_text
from engine.inquiry import ask
from engine.registry import Kind
from tests.real_engine import RealEngine, free_ports

USER = {"role": "user", "content": "hi"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
QUESTIONS = [
    "Tell me a story about a dragon.",
    "What is the capital of France?",
    "Write a haiku about snow",
    "List five fruits",
    "你好,请介绍一下你自己",
    "Who are you? 🌍🎉",
    "Describe a cat\n\n\twith tabs",
    "Say <|im_end|> literally",
    "Write Python code to add two numbers",
    "",
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    *[("chat/completions", {"messages": [{"role": "user", "content": text}]}) for text in QUESTIONS],
    ("chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, USER]}),
    ("chat/completions", {"messages": [USER, {"role": "assistant", "content": "Sure."}, USER]}),
    ("chat/completions", {"messages": [USER, {"role": "assistant", "content": "Sure"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 2}]}),
    ("chat/completions", {"messages": [USER], "tools": [TOOL]}),
    (
        "chat/completions",
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ]
        },
    ),
    ("completions", {"prompt": "Once upon a time"}),
    ("completions", {"prompt": [100, 200, 300]}),
    ("responses", {"input": "Hello there"}),
    (
        "responses",
        {
            "instructions": "Be brief",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        },
    ),
    ("messages", {"system": "Be brief", "messages": [USER]}),
]
INPUT_TOKENS = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")


async def reported_and_counted(engine: RealEngine, endpoint: str, body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, by the engine's usage and by our count."""
    cap = "max_output_tokens" if endpoint == "responses" else "max_tokens"
    body = {**body, "model": engine.engine_model, cap: 1}
    reply = await ask(engine.url, "POST", f"/v1/{endpoint}", body, within=60)
    assert reply.status == 200, reply.body
    reported = sum(reply.json["usage"].get(name) or 0 for name in INPUT_TOKENS)
    return reported, await count_prompt(engine, endpoint, body)


async def all_reported_and_counted(engine: RealEngine) -> list[tuple[int, int]]:
    return [await reported_and_counted(engine, endpoint, body) for endpoint, body in CALLS]


def assert_equal(pairs: Sequence[tuple[int, int]]) -> None:
    wrong = [(call, pair) for call, pair in zip(CALLS, pairs, strict=True) if pair[0] != pair[1]]
    assert not wrong
    assert all(reported > 0 for reported, _ in pairs)


def test_prompts_count_as_the_light_engine_reports_them(light_engine: RealEngine) -> None:
    assert_equal(asyncio.run(all_reported_and_counted(light_engine)))


@pytest.mark.vllm
def test_prompts_count_as_vllm_reports_them(vllm_replicas: list[RealEngine]) -> None:
    assert_equal(asyncio.run(all_reported_and_counted(vllm_replicas[0])))


def test_delivered_text_counts_within_one_token_of_what_was_generated(light_engine: RealEngine) -> None:
    async def one(number: int) -> int:
        # Not those that are answered beyond ASCII: a character that the cap cuts in two is never delivered.
        messages = [{"role": "user", "content": QUESTIONS[number % 4]}]
        body = {"messages": messages, "max_tokens": 8 + number, "temperature": 0}
        answer = (await ask(light_engine.url, "POST", "/v1/chat/completions", body, within=120)).json
        text = answer["choices"][0]["message"]["content"]
        counted = await count(light_engine, "chat/completions", body, text)
        assert counted.prompt_tokens == answer["usage"]["prompt_tokens"]
        generated: int = answer["usage"]["completion_tokens"]
        return counted.completion_tokens - generated

    async def twenty() -> list[int]:
        return list(await asyncio.gather(*(one(number) for number in range(20))))

    differences = asyncio.run(twenty())
    assert all(abs(difference) <= 1 for difference in differences), differences


def test_each_choice_is_counted_as_a_text_of_its_own(light_engine: RealEngine) -> None:
    async def counts() -> tuple[int, int, int]:
        body = {"messages": [USER]}
        both = await count(light_engine, "chat/completions", body, ["Hello", " world"])
        return (
            both.completion_tokens,
            await count_text(light_engine, "Hello"),
            await count_text(light_engine, " world"),
        )

    both, first, second = asyncio.run(counts())
    assert both == first + second > 0


def test_nothing_delivered_is_no_token(light_engine: RealEngine) -> None:
    assert asyncio.run(count_text(light_engine, "")) == 0


@dataclass(frozen=True)
class Elsewhere:
    url: str
    kind: Kind
    engine_model: str = "m"


def test_an_engine_without_a_tokenizer_cannot_count() -> None:
    replica = Elsewhere("http://127.0.0.1:9", "openai")
    with pytest.raises(CannotCount):
        asyncio.run(count(replica, "chat/completions", {"messages": [USER]}, "text"))


@pytest.mark.parametrize("kind", ["light", "vllm"])
def test_an_engine_that_is_away_cannot_count(kind: Kind) -> None:
    replica = Elsewhere(f"http://127.0.0.1:{free_ports(1)[0]}", kind)
    with pytest.raises(CannotCount):
        asyncio.run(count(replica, "chat/completions", {"messages": [USER]}, "text"))


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("chat/completions", {"messages": "no list"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "half \ud83d"}]}),
        ("completions", {"prompt": {"no": "text"}}),
        ("images", {}),
    ],
)
def test_what_the_engine_would_refuse_cannot_be_counted(
    light_engine: RealEngine, endpoint: str, body: dict[str, Any]
) -> None:
    with pytest.raises(CannotCount):
        asyncio.run(count(light_engine, endpoint, body, ""))
