"""Streams whose events carry a `type`: OpenAI's responses and Anthropic's messages."""

from abc import abstractmethod
from typing import Any

import orjson

from api.lane.stream import StreamMeter, error_message, event_data
from api.lane.usage import Usage, message_usage, response_usage


class TypedMeter(StreamMeter):
    """Reads every event; the last one is held back until the books have it."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.last = b""

    def feed(self, data: bytes) -> bytes:
        passed = []
        for event in self.split(data):
            payload = event_data(event)
            try:
                content: Any = orjson.loads(payload) if payload else None
            except orjson.JSONDecodeError:
                content = None
            if type(content) is dict:
                kind = content.get("type")
                if kind == "error":
                    self.failure = error_message(content.get("error") or content)
                    break
                self.read(str(kind), content)
                if self.failure is not None:
                    break
                is_delta = str(kind).endswith("delta")
                self.opened = self.opened or is_delta
                if not self.done:
                    self.delivered.add(event, 1 if is_delta else 0)
            if self.done:
                self.last += event
            else:
                passed.append(event)
        return b"".join(passed)

    @abstractmethod
    def read(self, kind: str, content: dict[str, Any]) -> None:
        """Take note of what the event says; set `done` at the last one."""

    def ending(self) -> bytes:
        return self.last


class ResponseMeter(TypedMeter):
    """`response.completed` or `response.incomplete` ends it and carries the usage."""

    __slots__ = ()

    def read(self, kind: str, content: dict[str, Any]) -> None:
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response = content.get("response")
            if type(response) is dict:
                self.usage = response_usage(response.get("usage")) or self.usage
            if kind == "response.failed":
                self.failure = error_message(response.get("error") if type(response) is dict else None)
            self.done = True


class MessageMeter(TypedMeter):
    """`message_start` carries the input, each `message_delta` the output so far, `message_stop` ends it."""

    __slots__ = ("output_said", "stopped")

    def __init__(self) -> None:
        super().__init__()
        self.stopped = False
        self.output_said = False  # the first event says 0: it was sent before any output was made

    def read(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "message_start":
            message = content.get("message")
            self.note(message.get("usage") if type(message) is dict else None)
        elif kind == "message_delta":
            usage = content.get("usage")
            self.output_said = self.output_said or (type(usage) is dict and "output_tokens" in usage)
            self.note(usage)
            delta = content.get("delta")
            self.stopped = self.stopped or (type(delta) is dict and bool(delta.get("stop_reason")))
        elif kind == "message_stop":
            self.done = True

    def note(self, usage: object) -> None:
        """Later counts win; what a later event leaves out stays as it was."""
        if type(usage) is not dict:
            return
        before = self.usage or Usage(0, 0, 0, 0)
        usage = {"output_tokens": before.completion, **usage}
        if not usage.get("input_tokens"):
            usage["input_tokens"] = before.prompt - before.cached
            usage["cache_read_input_tokens"] = before.cached
            usage["cache_creation_input_tokens"] = 0  # it is in the prompt already
        self.usage = message_usage(usage) or self.usage

    @property
    def reports(self) -> bool:
        return self.usage is not None and self.output_said

    def is_whole(self) -> bool:
        return self.done and self.stopped
