"""Reading a streamed answer while it passes: what must be known is found, the bytes stay as they are.

Server-sent events end at a blank line (WHATWG HTML, 9.2). A read may end anywhere, so only whole events are
passed on; what is left waits for the next read. Ordinary token events are recognised by a few scans in C and
never parsed.
"""

import re
from abc import ABC, abstractmethod
from typing import Any

import orjson

from api.lane.body import Edits
from api.lane.usage import Usage, openai_usage

EVENT_BYTES_MAX = 16 << 20  # one event longer than this is no event
FOLD_BYTES = 16 << 10  # relayed bytes that are kept whole before only their text is
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_TEXT = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|arguments|partial_json|thinking)":\s?"((?:[^"\\]|\\.)*)"'
)
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,\s*')
_CREATED = re.compile(rb'"created"\s*:\s*(\d+)')
DONE = b"data: [DONE]\n\n"
# vLLM's words for an output that it gave up by itself, at its shutdown for one: what came is no whole answer.
GIVEN_UP = ("abort", "error")


class Delivered:
    """The text passed on so far, kept small: for counting when a caller leaves, or whole for the cache."""

    __slots__ = ("events", "kept", "pieces", "size", "text_pieces", "whole_up_to")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.text_pieces: list[bytes] = []
        self.events = self.size = 0
        self.whole_up_to = 0  # bytes to keep as they are; 0: only the text matters
        self.kept = True

    def add(self, piece: bytes, events: int) -> None:
        self.events += events
        self.pieces.append(piece)
        self.size += len(piece)
        if self.size > FOLD_BYTES and self.size > self.whole_up_to:
            self.kept = False
            self.whole_up_to = 0
            self.fold()

    def fold(self) -> None:
        self.text_pieces += _TEXT.findall(b"".join(self.pieces))
        self.pieces.clear()
        self.size = 0

    def whole(self) -> bytes | None:
        """All bytes passed on, or None when they were too many to keep."""
        return b"".join(self.pieces) if self.kept else None

    def text(self) -> str:
        """The text passed on: contents, reasoning and tool arguments, in order."""
        self.kept = False
        self.fold()
        try:
            text = orjson.loads(b'"' + b"".join(self.text_pieces) + b'"')
        except orjson.JSONDecodeError:
            return b"".join(self.text_pieces).decode(errors="replace")
        return str(text)


class StreamMeter(ABC):
    """Cuts a stream into events and hands each to `event`. What a wire means stands in its subclass."""

    __slots__ = ("delivered", "done", "failure", "opened", "rest", "usage")

    def __init__(self) -> None:
        self.rest = b""
        self.usage: Usage | None = None
        self.opened = False  # more came than who speaks
        self.done = False  # the wire's own end was seen
        self.failure: str | None = (
            None  # what the engine said went wrong in mid-stream; nothing after it counts
        )
        self.delivered = Delivered()

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Bytes that may be passed on now. The end mark is never among them: `ending` gives it."""

    @abstractmethod
    def ending(self) -> bytes:
        """The bytes that end the answer, once it is whole."""

    def is_whole(self) -> bool:
        """Whether the answer finished, by its own words."""
        return self.done

    @property
    def reports(self) -> bool:
        """Whether `usage` says what was used so far, so that nobody needs to count."""
        return self.usage is not None

    def split(self, data: bytes) -> list[bytes]:
        """The whole events that `data` completes, each with its blank line."""
        look_from = 0
        if self.rest:
            look_from = max(0, len(self.rest) - 3)
            data = self.rest + data
        events, at = [], 0
        for match in _BLANK_LINE.finditer(data, look_from):
            events.append(data[at : match.end()])
            at = match.end()
        self.rest = data[at:]
        if len(self.rest) > EVENT_BYTES_MAX:
            self.failure = "The engine sent an event that is too long."
        return events


def event_data(event: bytes) -> bytes:
    """The data of one event: its data lines joined by a newline; b"" for comments."""
    lines = [
        line[6:] if line[:6] == b"data: " else line[5:] for line in event.splitlines() if line[:5] == b"data:"
    ]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def error_message(error: object) -> str:
    if type(error) is dict:
        error = error.get("message")
    return error if type(error) is str and error else "The engine failed while it answered."


class ChunkMeter(StreamMeter):
    """Chat completions and completions: `finish_reason` per choice, a usage chunk, `[DONE]`."""

    __slots__ = ("choices", "created", "finished", "fixes_created", "plain", "shows_usage")

    def __init__(self, choices: int, shows_usage: bool, fixes_created: bool) -> None:
        super().__init__()
        self.choices, self.shows_usage, self.fixes_created = choices, shows_usage, fixes_created
        # Only with one choice does the count of unfinished ones say that every event is such a chunk.
        self.plain = choices == 1 and not fixes_created
        self.finished: set[int] = set()
        self.created = b""

    def feed(self, data: bytes) -> bytes:
        if self.plain and self.opened and not self.rest and b'"usage"' not in data:
            events = data.count(b"\n\n")
            # Every event is an unfinished chunk: nothing in it concerns us. Quotes inside texts are escaped.
            if events and events == data.count(b'"finish_reason":null') and data.endswith(b"\n\n"):
                self.delivered.add(data, events)
                return data
        passed = []
        for event in self.split(data):
            kept = self.event(event)
            if self.failure is not None:
                break
            if kept:
                passed.append(kept)
        return b"".join(passed)

    def event(self, event: bytes) -> bytes:
        """One event as the caller gets it; b"" when it is held back."""
        data = event_data(event)
        if data == b"[DONE]":
            self.done = True
            return b""
        try:
            chunk: Any = orjson.loads(data) if data else None
        except orjson.JSONDecodeError:
            chunk = None
        if type(chunk) is not dict:
            return event  # comments, and what is not ours to judge
        if chunk.get("error"):
            self.failure = error_message(chunk["error"])
            return b""
        if self.fixes_created:
            event = self.with_one_created(event)
        choices, usage = chunk.get("choices"), chunk.get("usage")
        if type(usage) is dict:
            self.usage = openai_usage(usage) or self.usage
        if type(choices) is list and choices:
            for choice in choices:
                if has_finished(choice):
                    self.finished.add(choice.get("index", 0))
                elif type(choice) is dict and choice.get("finish_reason"):
                    self.failure = "The engine gave this call up before it was finished."
                    return b""
            self.delivered.add(event, 1)
            if not self.opened:
                self.opened = any(not only_role(choice) for choice in choices)
        if "usage" in chunk and not self.shows_usage:
            if type(usage) is dict and not choices:
                return b""
            event = without_usage(event, chunk)
        return event

    def with_one_created(self, event: bytes) -> bytes:
        """An engine that lets `created` move within a stream gets its first value all along."""
        found = _CREATED.search(event)
        if found is None:
            return event
        if not self.created:
            self.created = found.group(1)
        elif found.group(1) != self.created:
            return event[: found.start(1)] + self.created + event[found.end(1) :]
        return event

    def ending(self) -> bytes:
        return DONE

    def is_whole(self) -> bool:
        return self.done and len(self.finished) >= self.choices


def has_finished(choice: object) -> bool:
    """Whether a choice says that it is finished, and not that it was given up."""
    return (
        type(choice) is dict and bool(choice.get("finish_reason")) and choice["finish_reason"] not in GIVEN_UP
    )


def only_role(choice: object) -> bool:
    """Whether a chunk's choice says no more than who speaks."""
    if type(choice) is not dict or choice.get("finish_reason"):
        return False
    delta = choice.get("delta")
    return type(delta) is dict and not any(value for name, value in delta.items() if name != "role")


def without_usage(event: bytes, chunk: dict[str, Any]) -> bytes:
    """A chunk without the `usage` that only we asked for."""
    if chunk["usage"] is None:
        return _NULL_USAGE.sub(b"", event, count=1)
    start = event.index(b"{")
    edits = Edits(chunk)
    edits.drop("usage")
    return event[:start] + edits.apply(event[start:])
