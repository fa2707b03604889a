"""Usage as engines report it, on each wire, read into one shape."""

from typing import NamedTuple


class Usage(NamedTuple):
    """Tokens as the engine counted them. `cached` is part of `prompt`, `reasoning` of `completion`."""

    prompt: int
    cached: int
    completion: int
    reasoning: int


def count(value: object) -> int | None:
    """A token count as the engine wrote it; None when it is none. Absurd ones are judged in `metering`."""
    return value if type(value) is int else None


def openai_usage(usage: object) -> Usage | None:
    """`usage` of chat completions, completions and embeddings (OpenAI's OpenAPI document)."""
    if type(usage) is not dict:
        return None
    prompt, completion = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens", 0))
    if prompt is None or completion is None:
        return None
    cached = usage.get("prompt_tokens_details")
    reasoning = usage.get("completion_tokens_details")
    return Usage(
        prompt,
        (count(cached.get("cached_tokens")) or 0) if type(cached) is dict else 0,
        completion,
        (count(reasoning.get("reasoning_tokens")) or 0) if type(reasoning) is dict else 0,
    )


def response_usage(usage: object) -> Usage | None:
    if type(usage) is not dict:
        return None
    prompt, completion = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    if prompt is None or completion is None:
        return None
    cached, reasoning = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return Usage(
        prompt,
        (count(cached.get("cached_tokens")) or 0) if type(cached) is dict else 0,
        completion,
        (count(reasoning.get("reasoning_tokens")) or 0) if type(reasoning) is dict else 0,
    )


def message_usage(usage: object) -> Usage | None:
    """Anthropic's input_tokens exclude what was read from or written to the cache; ours include them."""
    if type(usage) is not dict:
        return None
    prompt, completion = count(usage.get("input_tokens")), count(usage.get("output_tokens", 0))
    if prompt is None or completion is None:
        return None
    cached = count(usage.get("cache_read_input_tokens")) or 0
    written = count(usage.get("cache_creation_input_tokens")) or 0
    return Usage(prompt + cached + written, cached, completion, 0)
