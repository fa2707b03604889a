"""A request as a fake engine received it, and a strict parser for it that shares no code with the gateway."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

DEADLINE = 10.0  # seconds that a wait_... may take before it fails the test


class NotHttp(Exception):
    """What came is not a request in strict HTTP/1.1."""


@dataclass
class Received:
    """One request as it came, and what became of its connection."""

    number: int
    connection: int  # requests with the same number came on one connection
    method: str
    target: str
    head: bytes  # from the request line through the empty line
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes  # without chunk framing
    chunked: bool
    arrived: float  # time.monotonic()
    ended: float | None = None  # when the script was through
    sent: int = 0  # bytes handed to the kernel for this request
    closed: float | None = None  # when the connection was closed, by whom ever
    closed_by_peer: bool = False
    reached: set[str] = field(default_factory=set)  # pauses that were come to
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def json(self) -> Any:
        return orjson.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def wait_reached(self, name: str, within: float = DEADLINE) -> None:
        self._wait(lambda: name in self.reached, within, f"pause {name!r} was not reached")

    def wait_ended(self, within: float = DEADLINE) -> None:
        self._wait(lambda: self.ended is not None, within, "the script did not come to its end")

    def wait_closed(self, within: float = DEADLINE) -> None:
        """Waits until the peer has closed (or reset) the connection of this request."""
        self._wait(lambda: self.closed_by_peer, within, "the peer did not close the connection")

    def _wait(self, true: Callable[[], bool], within: float, otherwise: str) -> None:
        with self._changed:
            if not self._changed.wait_for(true, within):
                raise AssertionError(f"{otherwise} within {within} s: request {self.number}")

    def _change(self, **values: Any) -> None:
        with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self._changed.notify_all()


def parse_request(buffer: bytes | bytearray, number: int, connection: int) -> tuple[Received, int] | None:
    """The first request in `buffer` and how many bytes it takes; None while it is not whole.

    Stricter than servers are: one Host, at most one way to tell the body's length, no folded lines.
    Raises NotHttp.
    """
    end = buffer.find(b"\r\n\r\n") + 4
    if end < 4:
        return None
    head = bytes(buffer[:end])
    line, *fields = head[:-4].decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1":
        raise NotHttp(f"request line {line!r}")
    headers = []
    for item in fields:
        name, colon, value = item.partition(":")
        if not colon or not name or name != name.strip() or "\n" in item or "\r" in item:
            raise NotHttp(f"header line {item!r}")
        headers.append((name.lower(), value.strip(" \t")))
    lengths = [value for name, value in headers if name == "content-length"]
    codings = [value for name, value in headers if name == "transfer-encoding"]
    if sum(name == "host" for name, _ in headers) != 1:
        raise NotHttp("not exactly one Host")
    if len(lengths) + len(codings) > 1:
        raise NotHttp("more than one way to tell the body's length")
    if codings and codings != ["chunked"]:
        raise NotHttp(f"transfer-encoding {codings}")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
        raise NotHttp(f"content-length {lengths[0]!r}")
    if codings:
        chunked = _unchunk(buffer, end)
        if chunked is None:
            return None
        body, end = chunked
    else:
        start, end = end, end + int(lengths[0] if lengths else 0)
        if len(buffer) < end:
            return None
        body = bytes(buffer[start:end])
    method, target = words[:2]
    request = Received(
        number, connection, method, target, head, headers, body, bool(codings), time.monotonic()
    )
    return request, end


def _unchunk(buffer: bytes | bytearray, at: int) -> tuple[bytes, int] | None:
    pieces: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        line = bytes(buffer[at:line_end])
        try:
            size = int(line, 16)
        except ValueError:
            raise NotHttp(f"chunk size {line!r}") from None
        start, at = line_end + 2, line_end + 2 + size + 2
        if len(buffer) < at:
            return None
        if buffer[at - 2 : at] != b"\r\n":
            raise NotHttp("a chunk that does not end where it said")
        if not size:
            return b"".join(pieces), at
        pieces.append(bytes(buffer[start : at - 2]))
    return None
