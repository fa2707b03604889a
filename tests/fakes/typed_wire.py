"""Streams whose events carry a type, as vLLM sends them: Anthropic's messages, OpenAI's responses."""

from collections.abc import Iterable
from typing import Any

import orjson

from tests.fakes.vllm_wire import CREATED, MODEL, Payload


def typed_event(kind: str, **content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **content}))


# Anthropic's messages


def message(text: str, *, prompt: int = 3, completion: int = 2, cached: int = 0) -> Payload:
    """A whole answer; `prompt` includes the cached tokens, which Anthropic's input_tokens leave out."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - cached,
            "output_tokens": completion,
            "cache_read_input_tokens": cached,
        },
    }


def message_events(
    words: Iterable[str], *, prompt: int = 3, completion: int | None = None, stops: bool = True
) -> list[bytes]:
    """A streamed answer; `stops` False leaves out stop_reason, as a stream that was cut would."""
    words = list(words)
    start = {**message("", prompt=prompt, completion=0), "content": [], "stop_reason": None}
    output = len(words) if completion is None else completion
    return [
        typed_event("message_start", message=start),
        typed_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(
            typed_event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
            for word in words
        ),
        typed_event("content_block_stop", index=0),
        typed_event(
            "message_delta",
            delta={"stop_reason": "end_turn" if stops else None, "stop_sequence": None},
            usage={"output_tokens": output},
        ),
        typed_event("message_stop"),
    ]


# OpenAI's responses


def response(text: str, *, prompt: int = 3, completion: int = 2, status: str = "completed") -> Payload:
    said = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "item_1", "type": "message", "role": "assistant", "status": status, "content": [said]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED,
        "model": MODEL,
        "status": status,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        },
    }


def response_events(words: Iterable[str], *, prompt: int = 3) -> list[bytes]:
    words = list(words)
    begun = {**response("", prompt=prompt, status="in_progress"), "output": [], "usage": None}
    deltas = [
        typed_event(
            "response.output_text.delta",
            item_id="item_1",
            output_index=0,
            content_index=0,
            delta=word,
            logprobs=[],
            sequence_number=number,
        )
        for number, word in enumerate(words, 1)
    ]
    whole = response("".join(words), prompt=prompt, completion=len(words))
    return [
        typed_event("response.created", response=begun, sequence_number=0),
        *deltas,
        typed_event("response.completed", response=whole, sequence_number=len(words) + 1),
    ]
