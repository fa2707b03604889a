"""A caller of the gateway that sees every byte: one raw connection, a strict reader of replies."""

import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson

from tests.gateway import App, Gateway

PATIENCE = 10.0  # seconds that a read may take before it fails the test


class BrokenOff(Exception):
    """The connection ended before the reply did; `so_far` is what came of its body."""

    def __init__(self, how: str, so_far: bytes = b"") -> None:
        super().__init__(how)
        self.how, self.so_far = how, so_far


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes  # without chunk framing

    def json(self) -> Any:
        return orjson.loads(self.body)

    def events(self) -> list[bytes]:
        """The events of a stream, each without its blank line."""
        *events, rest = self.body.split(b"\n\n")
        assert rest == b"", f"half an event at the end: {rest!r}"
        return events

    def chunks(self) -> list[Any]:
        """The JSON of each event but [DONE]."""
        datas = [event.removeprefix(b"data: ") for event in self.events()]
        return [orjson.loads(data) for data in datas if data != b"[DONE]"]


def request(
    app: App,
    body: Any,
    *,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    version: str = "1.1",
    chunked: tuple[int, ...] | None = None,
) -> bytes:
    """A POST as bytes; `body` as JSON unless it is bytes. chunked: sizes of HTTP chunks to cut it into."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    fields = {"Host": "gateway", "Authorization": f"Bearer {app.key}", "Content-Type": "application/json"}
    fields |= headers or {}
    if chunked is None:
        fields["Content-Length"] = str(len(raw))
    else:
        fields["Transfer-Encoding"] = "chunked"
    head = [f"POST {path} HTTP/{version}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(head).encode("latin-1") + (raw if chunked is None else in_chunks(raw, chunked))


def in_chunks(raw: bytes, sizes: tuple[int, ...]) -> bytes:
    pieces, at = [], 0
    for size in (*sizes, len(raw)):
        if piece := raw[at : at + size]:
            pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        at += size
    return b"".join(pieces) + b"0\r\n\r\n"


class Caller:
    """One connection."""

    def __init__(self, gateway: Gateway, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE)
        self.sock.connect((gateway.host, gateway.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, app: App, body: Any, **how: Any) -> Reply:
        """Sends a request and reads its whole reply."""
        self.send(request(app, body, **how))
        return self.read_reply()

    def read_reply(self) -> Reply:
        """Raises BrokenOff when the connection ends before the reply does."""
        status, headers = self.read_head()
        if "content-length" in headers:
            assert "transfer-encoding" not in headers
            return Reply(status, headers, self._exactly(int(headers["content-length"])))
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, self.read_chunks())
        return Reply(status, headers, self.read_to_end())

    def read_head(self) -> tuple[int, dict[str, str]]:
        line, *fields = self.read_until(b"\r\n\r\n")[:-4].decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1", line
        headers: dict[str, str] = {}
        for item in fields:
            name, value = item.split(": ", 1)
            assert name.lower() not in headers, f"{name} came twice"
            headers[name.lower()] = value
        return int(status), headers

    def read_chunks(self) -> bytes:
        body = b""
        try:
            while size := int(self.read_until(b"\r\n")[:-2], 16):
                piece = self._exactly(size + 2)
                assert piece[-2:] == b"\r\n"
                body += piece[:-2]
            assert self._exactly(2) == b"\r\n"
        except BrokenOff as broken:
            raise BrokenOff(broken.how, body + broken.so_far) from None
        return body

    def read_until(self, mark: bytes) -> bytes:
        while (at := self.buffer.find(mark)) < 0:
            self._more()
        return self._take(at + len(mark))

    def read_to_end(self) -> bytes:
        with contextlib.suppress(BrokenOff):
            while True:
                self._more()
        return self._take(len(self.buffer))

    def wait_closed(self) -> None:
        """Waits until the gateway has closed the connection; nothing more may come before."""
        assert self.read_to_end() == b""

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Breaks the connection (RST)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _exactly(self, count: int) -> bytes:
        try:
            while len(self.buffer) < count:
                self._more()
        except BrokenOff as broken:
            raise BrokenOff(broken.how, self._take(len(self.buffer))) from None
        return self._take(count)

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            raise BrokenOff("reset") from None
        if not data:
            raise BrokenOff("closed")
        self.buffer += data

    def _take(self, count: int) -> bytes:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
