"""Tokens counted by an engine's own tokenizer, off the path: for calls that ended before the engine's report.

The prompt is counted as the engine would have: after its chat template, with what starts the answer. The text
delivered is counted as one text per choice; where an engine held a character back until it was whole, or a
token could have been written as two, the count may differ by a token from what the engine generated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from engine.errors import CannotCount, EngineUnreachable
from engine.inquiry import ask
from engine.registry import Kind

__all__ = ["CannotCount", "Counted", "count", "count_prompt", "count_text"]

# What of a chat body shapes the prompt; vLLM's /tokenize takes the same names.
CHAT_FIELDS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)


class Tokenizing(Protocol):
    """What is needed of a replica here."""

    @property
    def url(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def engine_model(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of a prompt and of what was delivered of its answer."""

    prompt_tokens: int
    completion_tokens: int


async def count(
    replica: Tokenizing, endpoint: str, body: Mapping[str, Any], delivered: str | Sequence[str]
) -> Counted:
    """Count a call that sent `body` to `endpoint` and was delivered `delivered`: one text, or one per choice.

    Raises CannotCount when the engine has no tokenizer to ask, or it cannot be asked now.
    """
    texts = [delivered] if isinstance(delivered, str) else delivered
    prompt = await count_prompt(replica, endpoint, body)
    return Counted(prompt, sum([await count_text(replica, text) for text in texts]))


async def count_prompt(replica: Tokenizing, endpoint: str, body: Mapping[str, Any]) -> int:
    """Tokens that the engine makes of the prompt in `body`. Raises CannotCount."""
    if replica.kind == "openai":
        raise CannotCount("An engine of kind 'openai' has no tokenizer that could be asked.")
    match endpoint:
        case "chat/completions":
            return await _count_chat(replica, body)
        case "completions":
            return await _count_each(replica, body.get("prompt"))
        case "embeddings":
            return await _count_each(replica, body.get("input"))
        case "responses":
            return await _count_chat(replica, _as_chat(body))
        case "messages":
            question = {**body, "model": replica.engine_model, "stream": False}
            answer = await _answer(replica, "/v1/messages/count_tokens", question)
            return _whole_number(answer.get("input_tokens"))
    raise CannotCount(f"Prompts of the endpoint '{endpoint}' cannot be counted.")


async def count_text(replica: Tokenizing, text: str) -> int:
    """Tokens of a text as the model would have written it: nothing put in front. Raises CannotCount."""
    if not text:
        return 0
    if replica.kind == "light":
        return await _light_tokens(replica, text, start=False, special=False)
    if replica.kind == "vllm":
        return await _vllm_tokens(replica, {"prompt": text, "add_special_tokens": False})
    raise CannotCount("An engine of kind 'openai' has no tokenizer that could be asked.")


async def _count_chat(replica: Tokenizing, body: Mapping[str, Any]) -> int:
    if replica.kind == "vllm":
        return await _vllm_tokens(replica, {name: body[name] for name in CHAT_FIELDS if name in body})
    rendered = await _answer(replica, "/apply-template", {**body, "stream": False})
    prompt = rendered.get("prompt")
    if not isinstance(prompt, str):
        raise CannotCount("The engine rendered no prompt.")
    return await _light_tokens(replica, prompt, start=True, special=True)


async def _count_each(replica: Tokenizing, prompts: Any) -> int:
    """Of one text, several texts, one list of token numbers, or several such lists."""
    if isinstance(prompts, str):
        if replica.kind == "vllm":
            return await _vllm_tokens(replica, {"prompt": prompts})
        return await _light_tokens(replica, prompts, start=True, special=True)
    if not isinstance(prompts, list):
        raise CannotCount("The prompt is neither text nor a list.")
    if all(isinstance(number, int) for number in prompts):
        return len(prompts)
    return sum([await _count_each(replica, prompt) for prompt in prompts])


async def _vllm_tokens(replica: Tokenizing, question: dict[str, Any]) -> int:
    answer = await _answer(replica, "/tokenize", {"model": replica.engine_model, **question})
    return _whole_number(answer.get("count"))


async def _light_tokens(replica: Tokenizing, text: str, *, start: bool, special: bool) -> int:
    question = {"content": text, "add_special": start, "parse_special": special}
    tokens = (await _answer(replica, "/tokenize", question)).get("tokens")
    if not isinstance(tokens, list):
        raise CannotCount("The engine gave no tokens.")
    return len(tokens)


async def _answer(replica: Tokenizing, path: str, question: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = await ask(replica.url, "POST", path, question)
    except (EngineUnreachable, orjson.JSONEncodeError) as error:
        raise CannotCount(str(error)) from error
    answer = reply.json
    if reply.status != 200 or not isinstance(answer, dict):
        raise CannotCount(f"The engine answered {reply.status} when asked to count.")
    return answer


def _whole_number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CannotCount("The engine gave no number of tokens.")
    return value


def _as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The messages that a Responses call stands for; what is no message (calls, reasoning) is left out."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    for item in items:
        if isinstance(item, dict) and "role" in item:
            messages.append({"role": item["role"], "content": _as_text(item.get("content"))})
    return {"messages": messages}


def _as_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
