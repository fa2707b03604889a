"""The three kinds of answer that an engine gives: whole, streamed, refused."""

import re
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from api.errors import GatewayError, InvalidRequest
from api.lane.charge import NOTHING
from api.lane.usage import Usage
from engine.answers import assemble, is_repeatable

if TYPE_CHECKING:
    from api.lane.call import Call

WHOLE_BYTES_MAX = 64 << 20
REFUSAL_BYTES_MAX = 1 << 20
LOGGED_MAX = 200  # characters of an engine's own words
# Refusals that the caller can mend are passed on; the rest of 4xx is between the gateway and its engine.
PASSED_ON = frozenset((400, 413, 422))


class Answer(Protocol):
    """What an engine's answer does with what comes in; its call is told how it went."""

    def body(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def finish(self) -> None:
        """The close record is written: send what is left to send."""

    def so_far(self) -> tuple[Usage, str]:
        """Usage when the call ends now, and who counted it; source `none` when nobody did."""

    def delivered(self) -> tuple[str, int]:
        """The text that the caller got, and in how many events."""


class WholeAnswer:
    """An answer in one piece; the caller gets it when the books have it."""

    __slots__ = ("call", "pieces", "repeatable", "reported", "size", "whole")

    def __init__(self, call: "Call") -> None:
        self.call, self.size, self.whole = call, 0, b""
        self.pieces: list[bytes] = []
        self.repeatable = False
        self.reported: Usage | None = None

    def body(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)
        if self.size > WHOLE_BYTES_MAX:
            if self.call.exchange is not None:
                self.call.exchange.abort()
            self.call.engine_failed("engine_answer_too_long", "its answer is too long", worked=True)

    def end(self) -> None:
        call = self.call
        self.whole = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        try:
            answer: Any = orjson.loads(self.whole)
        except orjson.JSONDecodeError:
            answer = None
        if (
            type(answer) is not dict
            or answer.get("error")
            or call.ask.stream
            or not call.dialect.is_whole(answer)
        ):
            call.engine_failed("engine_answer_broken", "its answer is broken", worked=True)
            return
        self.repeatable = call.cache_key is not None and is_repeatable(answer, choices=call.ask.choices)
        self.reported = call.dialect.usage(answer)
        if self.reported is not None:
            call.complete(self.reported, "engine")
        else:
            call.lane.spawn(count_first(call, text_of(answer), 0))

    def finish(self) -> None:
        call = self.call
        if self.repeatable and call.cache_key is not None:
            call.lane.cache.put(call.cache_key, self.whole)
        call.reply_json(200, self.whole)

    def so_far(self) -> tuple[Usage, str]:
        return NOTHING, "none"

    def delivered(self) -> tuple[str, int]:
        return "", 0


class StreamedAnswer:
    """An answer that is passed on as it comes; its last event waits until the books have the call."""

    __slots__ = ("call", "held", "meter")

    def __init__(self, call: "Call") -> None:
        self.call = call
        self.held = b""  # nothing but the role: not an answer yet, so another replica could still give it
        assert call.replica is not None
        self.meter = call.dialect.meter(call.ask, fixes_created=call.replica.kind == "light")
        if call.cache_key is not None:
            self.meter.delivered.whole_up_to = call.lane.cache.max_bytes

    def body(self, data: bytes) -> None:
        meter, call = self.meter, self.call
        out = meter.feed(data)
        if out:
            if call.head_sent:
                call.protocol.write(b"%x\r\n%b\r\n" % (len(out), out) if call.chunked else out)
            elif meter.opened:
                call.start_stream()
                call.pass_on(self.held + out)
            else:
                self.held += out
        if meter.failure is not None:
            self._failed(meter.failure)
        elif meter.done:
            self._over()

    def end(self) -> None:
        if not self.call.closed:
            self._over()

    def _over(self) -> None:
        call, meter = self.call, self.meter
        if not meter.is_whole():
            self._failed("The engine's answer broke off before it was finished.")
            return
        if call.exchange is not None:
            call.exchange.let_end()
            call.exchange = None
        if meter.reports and meter.usage is not None:
            call.complete(meter.usage, "engine")
        else:
            text, events = self.delivered()
            call.lane.spawn(count_first(call, text, events))

    def _failed(self, message: str) -> None:
        call = self.call
        if call.exchange is not None:
            call.exchange.abort()
            call.exchange = None
        if not call.head_sent:
            call.engine_failed("engine_failed", message, worked=True)
            return
        call.lane.log.warning("call %s broke off at the engine: %s", call.id, message[:LOGGED_MAX])
        told = "The engine failed while it answered: what came so far is incomplete."
        call.fail("engine_failed", GatewayError(502, "server_error", "engine_failed", told))

    def finish(self) -> None:
        call, meter = self.call, self.meter
        ending = meter.ending()
        if not call.head_sent:
            call.start_stream()
            ending = self.held + ending
        whole = meter.delivered.whole() if call.cache_key is not None else None
        if ending:
            call.pass_on(ending)
        call.end_stream()
        if whole is not None and call.cache_key is not None:
            answer = assemble(whole, meter.usage, choices=call.ask.choices)
            if answer is not None:
                call.lane.cache.put(call.cache_key, answer)

    def so_far(self) -> tuple[Usage, str]:
        if self.meter.reports and self.meter.usage is not None:
            return self.meter.usage, "engine"
        return Usage(0, 0, self.meter.delivered.events, 0), "counted"

    def delivered(self) -> tuple[str, int]:
        delivered = self.meter.delivered
        return delivered.text(), delivered.events


class RefusedAnswer:
    """An engine's status other than 200: the caller's own faults are passed on in the wire's shape."""

    __slots__ = ("call", "error", "headers", "pieces", "size", "status")

    def __init__(self, call: "Call", status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.call, self.status, self.headers = call, status, headers
        self.pieces: list[bytes] = []
        self.size = 0
        self.error: GatewayError | None = None

    def body(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= REFUSAL_BYTES_MAX:
            self.pieces.append(data)

    def end(self) -> None:
        call = self.call
        if self.status == 501:
            self.error = InvalidRequest(
                "The engine of this model does not support this.", code="not_supported"
            )
            call.close("engine_refused", 400, NOTHING, "none", "not_supported")
            return
        if self.status not in PASSED_ON:
            call.engine_failed(
                "engine_failed", f"it answered with status {self.status}", worked=True, status=self.status
            )
            return
        message, param, code = said_by(b"".join(self.pieces))
        self.error = GatewayError(
            self.status, "invalid_request_error", code, message, param, should_retry=False
        )
        call.close("engine_refused", self.status, NOTHING, "none", code)

    def finish(self) -> None:
        assert self.error is not None
        self.call.refuse(self.error)

    def so_far(self) -> tuple[Usage, str]:
        return NOTHING, "none"

    def delivered(self) -> tuple[str, int]:
        return "", 0


async def count_first(call: "Call", text: str, events: int) -> None:
    """A finished answer without usage: the engine's tokenizer counts it before the books are closed."""
    assert call.replica is not None
    usage, flags = await call.lane.counter.count(
        call.replica, call.dialect.endpoint, call.ask.fields, text, events, len(call.body)
    )
    if call.left:
        return  # it is counted by what it got, which is not this
    call.close("completed", 200, usage, "counted", None, flags)


def text_of(answer: dict[str, Any]) -> str:
    """All text of a whole answer, in any of the wires."""
    found: list[str] = []

    def walk(value: Any, name: str) -> None:
        if type(value) is str:
            if name in ("content", "text", "arguments", "reasoning_content", "reasoning", "thinking"):
                found.append(value)
        elif type(value) is list:
            for item in value:
                walk(item, name)
        elif type(value) is dict:
            for key, item in value.items():
                walk(item, key)

    walk(answer, "")
    return "".join(found)


def said_by(body: bytes) -> tuple[str, str | None, str]:
    """Message, param and code of an engine's refusal: OpenAI's shape, llama.cpp's, or FastAPI's."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    error = said.get("error", said) if type(said) is dict else None
    if type(error) is not dict:
        error = {"message": error}
    message, param, code = error.get("message"), error.get("param"), error.get("code")
    if type(message) is not str or not message:
        message = "The engine refused this request."
    if type(param) is not str:
        named = _FIELD.search(message)
        param = named.group(1) if named is not None else None
    if "json.exception" in message:  # a library's own words; what matters is which field
        message = f"'{param}' has a wrong type." if param else "A field has a wrong type."
    if "context" in message and ("length" in message or "size" in message):
        code = "context_length_exceeded"
    return message, param, code if type(code) is str and code else "refused_by_engine"


_FIELD = re.compile(r"[Ff]ield '([\w.\[\]]+)'")
