"""What vLLM 0.32 puts on the wire, as bytes: events of a chat stream, whole answers, HTTP framing.

The form is that of a real server: compact JSON, text as plain UTF-8, `"token_ids":null` in each choice, no
`usage: null` on ordinary chunks, one chunk with `choices: []` and `usage` before `[DONE]`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

ID = "chatcmpl-0123456789abcdef0123456789abcdef"
CREATED = 1764500000
MODEL = "scripted"
DONE = b"data: [DONE]\n\n"
END_OF_CHUNKS = b"0\r\n\r\n"

Payload = dict[str, Any]


def event(payload: Payload) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(change: Payload, *, finish: str | None = None, index: int = 0, **more: Any) -> Payload:
    choice = {"index": index, "delta": change, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "choices": [choice],
        **more,
    }


def role(index: int = 0) -> bytes:
    return event(delta({"role": "assistant", "content": ""}, index=index, prompt_token_ids=None))


def text(content: str, index: int = 0) -> bytes:
    return event(delta({"content": content}, index=index))


def finish(reason: str = "stop", index: int = 0) -> bytes:
    return event(delta({}, finish=reason, index=index))


def usage_of(prompt: int, completion: int, cached: int = 0) -> Payload:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    return event({**delta({}), "choices": [], "usage": usage_of(prompt, completion, cached)})


def error_event(message: str = "engine core died", code: int = 500) -> bytes:
    """An error in mid-stream, as vLLM sends it."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": code}
    return event({"error": error})


def error_body(message: str, code: int = 400, kind: str = "BadRequestError") -> Payload:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def chat_events(
    words: Iterable[str],
    *,
    prompt: int = 3,
    completion: int | None = None,
    cached: int = 0,
    with_usage: bool = True,
    choices: int = 1,
    reason: str = "stop",
) -> list[bytes]:
    """A whole good stream, one item per event. `completion` defaults to one token per word and choice."""
    words = list(words)
    events = [role(index) for index in range(choices)]
    events += [text(word, index) for word in words for index in range(choices)]
    events += [finish(reason, index) for index in range(choices)]
    if with_usage:
        events.append(usage(prompt, len(words) * choices if completion is None else completion, cached))
    return [*events, DONE]


def chat_answer(
    content: str | None,
    *,
    prompt: int = 3,
    completion: int = 2,
    cached: int = 0,
    choices: int = 1,
    reason: str = "stop",
    **message: Any,
) -> Payload:
    """A whole answer, not streamed."""
    said = {"role": "assistant", "content": content, "tool_calls": [], **message}
    return {
        "id": ID,
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [
            {"index": i, "message": said, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            for i in range(choices)
        ],
        "usage": usage_of(prompt, completion, cached),
    }


REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
}
DATE = "Sun, 30 Nov 2025 10:00:00 GMT"


def head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Scripted"))]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def stream_head(status: int = 200, *, chunked: bool = True, **headers: str) -> bytes:
    """The head of an event stream; not chunked means that the body ends when the connection does."""
    fields = {"date": DATE, "server": "uvicorn"}
    fields["content-type"] = "text/event-stream; charset=utf-8"
    fields["transfer-encoding" if chunked else "connection"] = "chunked" if chunked else "close"
    return head(status, fields | {name.replace("_", "-"): value for name, value in headers.items()})


def chunk(body: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def reply(body: Payload | bytes, status: int = 200, *, chunked: bool = False, **headers: str) -> bytes:
    """A whole HTTP reply, JSON unless `body` is bytes."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    fields = {
        "date": DATE,
        "server": "uvicorn",
        "content-type": "application/json",
    }
    fields |= {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(raw))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return head(status, fields) + (chunk(raw) + END_OF_CHUNKS if chunked else raw)


def stream_reply(events: Iterable[bytes], **headers: str) -> list[bytes]:
    """A whole HTTP reply that streams: the head, one HTTP chunk per event, the last chunk."""
    return [stream_head(200, chunked=True, **headers), *(chunk(item) for item in events), END_OF_CHUNKS]
