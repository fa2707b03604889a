"""A caller that knows of each call what it got: whole, refused, broken off, or nothing at all.

It keeps connections open between calls as the SDKs do, and never tries a call twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

DONE = b"data: [DONE]"

Ending = Literal[
    "whole",  # an answer with status 200, complete by its own words
    "refused",  # a complete answer with another status
    "error event",  # a stream that began, and ended with an error event
    "cut",  # a stream that ended in order, but without [DONE] and without an error event
    "broken off",  # the head of the answer came, and the connection ended before the answer did
    "no reply",  # the connection ended before the head of an answer came
    "not connected",
    "left",  # we went away, as planned
    "hung",  # our patience was over
]


@dataclass(frozen=True, slots=True)
class Ask:
    """One call to make. tag: its `user`, by which its row is found when no id came back.

    shows_usage: a stream is asked for its usage. repeatable: temperature 0, so that the cache may answer.
    leaves_after: go away after so many events.
    """

    tag: str
    prompt: str
    max_tokens: int
    stream: bool = False
    shows_usage: bool = False
    repeatable: bool = False
    leaves_after: int | None = None
    more: dict[str, Any] = field(default_factory=dict)  # further fields of the body

    def body(self, model: str) -> bytes:
        fields: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "user": self.tag,
        }
        if self.stream:
            fields["stream"] = True
        if self.shows_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.repeatable:
            fields["temperature"] = 0
        return orjson.dumps(fields | self.more)


@dataclass(slots=True)
class Told:
    """What came of a call. id: from x-request-id. seconds: from the first byte sent to the end of it."""

    ask: Ask
    ending: Ending = "hung"
    seconds: float = 0.0
    ended_at: float = 0.0  # seconds since the epoch
    id: str | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None  # of the error
    usage: dict[str, Any] | None = None
    events: int = 0

    @property
    def from_cache(self) -> bool:
        return self.headers.get("x-cache") == "hit"


class Caller:
    """Calls one address with one key. patience: seconds after which a call counts as hung.

    in_flight: calls that run now. begun: streams so far of which something came.
    """

    def __init__(self, host: str, port: int, key: str, model: str, *, patience: float) -> None:
        self.host, self.port, self.key, self.model, self.patience = host, port, key, model, patience
        self.in_flight = self.begun = 0
        self._idle: list[_Connection] = []

    async def call(self, ask: Ask) -> Told:
        told = Told(ask)
        began = time.monotonic()
        self.in_flight += 1
        try:
            async with asyncio.timeout(self.patience):
                await self._call(told)
        except TimeoutError:
            told.ending = "hung"
        finally:
            self.in_flight -= 1
            told.seconds = time.monotonic() - began
            told.ended_at = time.time()
        return told

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _kept(self) -> _Connection | None:
        """A connection of an earlier call, if one is still open."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and connection.reader.exception() is None:
                return connection
            connection.abort()
        return None

    async def _call(self, told: Told) -> None:
        connection = self._kept()
        keep = False
        try:
            if connection is None:
                try:
                    connection = _Connection(*await asyncio.open_connection(self.host, self.port))
                except OSError:
                    told.ending = "not connected"
                    return
            try:
                keep = await self._exchange(connection, told)
            except (asyncio.IncompleteReadError, OSError):
                told.ending = "broken off" if told.status is not None else "no reply"
        finally:
            if keep and connection is not None:
                self._idle.append(connection)
            elif connection is not None:
                connection.abort()

    async def _exchange(self, connection: _Connection, told: Told) -> bool:
        """One request and its answer; whether the connection may be used again."""
        body = told.ask.body(self.model)
        connection.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b:%d\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (self.host.encode(), self.port, self.key.encode(), len(body), body)
        )
        status, headers = await connection.head()
        told.status, told.headers, told.id = status, headers, headers.get("x-request-id")
        if headers.get("transfer-encoding") == "chunked":
            if not await self._stream(connection, told):
                return False
        else:
            answer = orjson.loads(await connection.reader.readexactly(int(headers["content-length"])))
            told.ending = "whole" if status == 200 else "refused"
            told.usage = answer.get("usage")
            told.code = (answer.get("error") or {}).get("code")
        return headers.get("connection") != "close"

    async def _stream(self, connection: _Connection, told: Told) -> bool:
        """Whether the stream was read to the end of its message."""
        rest, done = b"", False
        while piece := await connection.chunk():
            *events, rest = (rest + piece).split(b"\n\n")
            self.begun += told.events == 0 and bool(events)
            for event in events:
                told.events += 1
                if event == DONE:
                    done = True
                    continue
                said = orjson.loads(event.removeprefix(b"data: "))
                told.usage = said.get("usage") or told.usage
                told.code = (said.get("error") or {}).get("code") or told.code
            if told.ask.leaves_after is not None and told.events >= told.ask.leaves_after and not done:
                told.ending = "left"
                return False
        if told.code is not None:
            told.ending = "error event"
        else:
            told.ending = "whole" if done and not rest else "cut"
        return True


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        headers = dict(field.split(": ", 1) for field in fields)
        return int(line.split(" ", 2)[1]), {name.lower(): value for name, value in headers.items()}

    async def chunk(self) -> bytes:
        """The data of the next chunk; b"" at the end of the message."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    def abort(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop may be gone
            self.writer.transport.abort()
