"""Streamed answers made whole, and whole answers streamed again: the cache keeps the whole form.

Wire: OpenAI's chat completions and completions. Fields that are not known here are kept where there is a
place for them: text grows, lists grow, other values are replaced by the newest one that is not null.
"""

import re
from typing import Any, Protocol

import orjson

# An answer that ended otherwise (null, "abort", "error", a filter's verdict) is not one to repeat.
KEPT_FINISH_REASONS = frozenset(("stop", "length", "tool_calls", "function_call"))

DONE = b"data: [DONE]\n\n"
_CHUNK_OBJECTS = {"chat.completion.chunk": "chat.completion", "text_completion": "text_completion"}
_WHOLE_OBJECTS = {whole: chunk for chunk, whole in _CHUNK_OBJECTS.items()}
# Texts of a delta arrive in pieces, except for these, which an engine may also repeat in each chunk.
_NAMES = frozenset(("role", "id", "type", "name"))
_PIECE = re.compile(rb'"content":\s?"((?:[^"\\]|\\.)*)"')
_PER_CHUNK_FIELDS = ("obfuscation",)


class Counts(Protocol):
    """Usage as the caller of `assemble` has it; cached is part of prompt, reasoning of completion."""

    @property
    def prompt(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def completion(self) -> int: ...
    @property
    def reasoning(self) -> int: ...


def assemble(stream: bytes, usage: Counts | None, *, choices: int = 1) -> bytes | None:
    """The whole answer that a stream of events adds up to, as JSON; None when it must not be kept.

    stream: the events as the engine sent them, of a stream that ended with [DONE] (which may be left out).
    usage: what the engine reported when its usage event is not in `stream`. choices: how many the call asked
    for. Not kept: an error event, a choice without an end or with one that is not to be repeated, fewer
    choices than asked for, events of another wire.
    """
    whole: dict[str, Any] = {}
    parts: dict[int, dict[str, Any]] = {}
    for data in _events(_squeezed(stream)):
        if data == b"[DONE]":
            break
        try:
            chunk: Any = orjson.loads(data)
        except orjson.JSONDecodeError:
            return None
        if type(chunk) is not dict or chunk.get("error") or type(chunk.get("choices")) is not list:
            return None
        for name, value in chunk.items():
            if name == "choices":
                for choice in value:
                    if type(choice) is not dict or type(choice.get("index", 0)) is not int:
                        return None
                    index = choice.get("index", 0)
                    _add_choice(parts.setdefault(index, {"index": index}), choice)
            elif name not in _PER_CHUNK_FIELDS and (name not in whole or value is not None):
                whole[name] = value
    if len(parts) < choices or whole.get("object") not in _CHUNK_OBJECTS:
        return None
    if any(part.get("finish_reason") not in KEPT_FINISH_REASONS for part in parts.values()):
        return None
    whole["object"] = _CHUNK_OBJECTS[whole["object"]]
    whole["choices"] = [_finished(parts[index]) for index in sorted(parts)]
    if type(whole.get("usage")) is not dict:
        if usage is None:
            whole.pop("usage", None)
        else:
            whole["usage"] = _usage(usage)
    return orjson.dumps(whole)


def is_repeatable(answer: dict[str, Any], *, choices: int = 1) -> bool:
    """Whether a whole answer as the engine gave it may be kept: by the same rules as `assemble`."""
    found = answer.get("choices")
    return (
        not answer.get("error")
        and answer.get("object") in _WHOLE_OBJECTS
        and type(found) is list
        and len(found) >= choices
        and all(type(one) is dict and one.get("finish_reason") in KEPT_FINISH_REASONS for one in found)
    )


def replay(
    answer: bytes, *, request_id: str, created: int, stream: bool, include_usage: bool = False
) -> bytes:
    """A kept answer as a new one: JSON, or with `stream` all events of it, [DONE] included.

    request_id: becomes the answer's id, behind the wire's own prefix. created: seconds since the epoch.
    include_usage: whether the streaming caller asked for usage.
    """
    whole: dict[str, Any] = orjson.loads(answer)
    chat = whole.get("object") != "text_completion"
    whole["id"] = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
    whole["created"] = created
    if not stream:
        return orjson.dumps(whole)
    choices, usage = whole.pop("choices", []), whole.pop("usage", None)
    whole["object"] = _WHOLE_OBJECTS.get(whole.get("object", ""), "chat.completion.chunk")
    if include_usage:
        whole["usage"] = None
    events = []
    for choice in choices:
        for piece in _chat_pieces(choice) if chat else _text_pieces(choice):
            events.append(_event({**whole, "choices": [piece]}))
    if include_usage:
        events.append(_event({**whole, "choices": [], "usage": usage}))
    events.append(DONE)
    return b"".join(events)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _squeezed(stream: bytes) -> bytes:
    """The same answer in fewer events: neighbours that differ only in a piece of text are made one.

    What stands between two pieces is the end of one event and the beginning of the next. It is read off the
    second event (the first one says the role) and taken out wherever it stands; no text can hold it, because
    line ends are escaped in texts. Parsing each event would cost more than passing the stream on.
    """
    start = stream.find(b"\n\n") + 2
    end = stream.find(b"\n\n", start) + 2
    event = stream[start:end]
    piece = _PIECE.search(event)
    if start < 2 or end < 2 or piece is None:
        return stream
    try:
        (choice,) = orjson.loads(event[event.index(b"{") :])["choices"]
        delta = choice.pop("delta")
    except (ValueError, KeyError, TypeError, AttributeError):
        return stream
    choice.pop("index", None)
    if (
        type(delta) is not dict
        or list(delta) != ["content"]
        or any(value is not None for value in choice.values())
    ):
        return stream
    joint = event[piece.end(1) :] + event[: piece.start(1)]
    return stream[:start] + stream[start:].replace(joint, b"")


def _events(stream: bytes) -> list[bytes]:
    """The data of each event; several data lines of one event are joined by a newline."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and lines:
            found.append(b"\n".join(lines))
            lines = []
    if lines:
        found.append(b"\n".join(lines))
    return found


def _add_choice(whole: dict[str, Any], choice: dict[str, Any]) -> None:
    for name, value in choice.items():
        if name == "delta":
            if type(value) is dict:
                _add(whole.setdefault("message", {}), value)
        elif name == "logprobs" and type(value) is dict:
            _add_logprobs(whole, value)
        elif name == "text" or (name == "token_ids" and type(value) is list):
            _add(whole, {name: value})
        elif name not in whole or value is not None:
            whole[name] = value


def _add(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        before = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif name == "tool_calls" and type(value) is list:
            _add_tool_calls(whole, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        elif isinstance(value, str) and isinstance(before, str) and name not in _NAMES:
            whole[name] = before + value
        elif type(value) is dict and type(before) is dict:
            _add(before, value)
        else:
            whole[name] = value


def _add_tool_calls(message: dict[str, Any], pieces: list[Any]) -> None:
    """Tool calls come in pieces that name their place by `index`; only the first has id, type and name."""
    calls = message.get("tool_calls")
    if type(calls) is not list:
        calls = message["tool_calls"] = []
    for piece in pieces:
        if type(piece) is not dict:
            continue
        index = piece.get("index", len(calls))
        known = next((call for call in calls if call.get("index") == index), None)
        if known is None:
            known = {"index": index}
            calls.append(known)
        _add(known, piece)


def _add_logprobs(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    """Chat has lists under `content` and `refusal`, completions have four lists side by side."""
    before = choice.get("logprobs")
    if type(before) is not dict:
        choice["logprobs"] = dict(piece)
        return
    for name, value in piece.items():
        if type(value) is list and type(before.get(name)) is list:
            before[name] = before[name] + value
        elif value is not None:
            before[name] = value


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice as the whole form has it."""
    message = choice.get("message")
    if message is None:
        return choice
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    calls = message.get("tool_calls")
    if type(calls) is list:
        calls.sort(key=lambda call: call["index"])
        for call in calls:
            del call["index"]
    if message["content"] == "" and calls:
        message["content"] = None
    choice.setdefault("logprobs", None)
    return choice


def _usage(counts: Counts) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
    }
    if counts.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached}
    if counts.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return usage


def _chat_pieces(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """One choice as its chunks: who speaks, what is said, how it ended."""
    message = dict(choice.get("message") or {})
    index, logprobs = choice.get("index", 0), choice.get("logprobs")
    text = "" if type(message.get("content")) is str else None
    role = {"role": message.pop("role", "assistant"), "content": text}
    if type(message.get("tool_calls")) is list:
        message["tool_calls"] = [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
    said = {name: value for name, value in message.items() if value is not None and value != []}
    ending = {name: value for name, value in choice.items() if name not in ("message", "logprobs", "index")}
    pieces = [{"index": index, "delta": role, "logprobs": None, "finish_reason": None}]
    if said:
        pieces.append({"index": index, "delta": said, "logprobs": logprobs, "finish_reason": None})
    pieces.append({"index": index, "delta": {}, "logprobs": None, **ending})
    return pieces


def _text_pieces(choice: dict[str, Any]) -> list[dict[str, Any]]:
    text = {
        "index": choice.get("index", 0),
        "text": choice.get("text", ""),
        "logprobs": choice.get("logprobs"),
    }
    ending = {name: value for name, value in choice.items() if name not in ("text", "logprobs", "index")}
    return [
        {**text, "finish_reason": None},
        {"index": text["index"], "text": "", "logprobs": None, **ending},
    ]
