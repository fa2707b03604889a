"""uvicorn's HTTP protocol with the lane in it: one server, one port, one set of rules.

Paths of the lane are served by callbacks on the connection; everything else goes to FastAPI through the
parent class. What this relies on in uvicorn is held by tests/api/test_uvicorn_contract.py.
"""

import asyncio
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.access.keys import key_from_headers
from api.errors import (
    BodyTooLarge,
    GatewayError,
    HeadTooLarge,
    InvalidKey,
    InvalidRequest,
    MethodNotAllowed,
    RequestTimedOut,
    UrlTooLong,
)
from api.lane import reply
from api.lane.admission import begin
from api.lane.call import Call
from api.lane.dialects import BY_PATH, Dialect
from api.lane.lane import BODY_BYTES_MAX, Lane
from ledger.ids import new_id

LINGER_SECONDS = 5.0
HEAD_BYTES_MAX = 64 << 10  # request line and headers; one read more may come in
URL_BYTES_MAX = 8 << 10
HEADERS_MAX = 100
# A body longer than this is not waited for when there is no key with it.
SMALL_BODY_BYTES = 64 << 10
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
VERSIONS = ("1.1", "1.0")
ONCE = (b"host", b"transfer-encoding", b"content-length")


class LaneProtocol(HttpToolsProtocol):
    """One caller's connection. `lane` is set by `bound_to`."""

    lane: Lane

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        # Whose turn it is; uvicorn's `cycle` is the request that was read last.
        self.front: Call | RequestResponseCycle | None = None
        self.turn_waits = False  # the next turn, and reading, until the caller takes what is ready for it
        self.refused = False
        self.in_head = self.upgrading = False
        self.head_bytes = 0
        self.lane.idle[self] = self.loop.time()

    # Parsing

    def data_received(self, data: bytes) -> None:
        idle_since = self.lane.idle.pop(self, None)
        if self.refused:
            return
        if self.in_head:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_BYTES_MAX:
                self._refuse_head(HeadTooLarge())
                return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.refused:
                self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")
        else:
            if idle_since is not None and self._is_idle():
                # It was no request, and no part of one: empty lines keep no connection.
                self.lane.idle.setdefault(self, idle_since)

    def _is_idle(self) -> bool:
        runs = self.front is not None or self.turn_waits or self in self.lane.reading
        return not (runs or self.refused or self.transport.is_closing())

    def _without_upgrade(self, rest: bytes) -> None:
        """No other protocol is spoken here, so an upgrade is ignored (RFC 9110, 7.8). The parser has left the
        body aside: it reads the request once more, without the headers that ask for it."""
        self.upgrading = False
        lines = [b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] not in UPGRADE_HEADERS]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join(lines) + b"\r\n" + rest)

    def on_message_begin(self) -> None:
        # The parent builds an ASGI scope here; the lane needs none, so that waits until the path is known.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.in_head, self.head_bytes = True, 0
        if not self.refused:
            self.lane.reading[self] = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self.refused:
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse_head(MethodNotAllowed("CONNECT", "a gateway"))
            return
        if self.parser.should_upgrade():
            self.upgrading = True
            return
        if len(self.url) > URL_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._refuse_head(UrlTooLong() if len(self.url) > URL_BYTES_MAX else HeadTooLarge())
            return
        dialect = BY_PATH.get(self.url) or lane_path(self.url)
        if dialect is None or self.parser.get_method() != b"POST":
            self._to_fastapi()
            return
        headers = dict(self.headers)
        version = self.parser.get_http_version()
        doubled = len(headers) != len(self.headers) and is_ambiguous(self.headers)
        if doubled or version not in VERSIONS or not is_plain(headers, version):
            self.send_400_response("")
            return
        call = Call(
            self,
            self.lane,
            dialect,
            headers,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            chunked=version != "1.0",
        )
        before, self.cycle = self.cycle, call  # type: ignore[assignment]
        length = int(headers.get(b"content-length") or 0)
        if length > BODY_BYTES_MAX:
            self._refuse_body(call)
        elif length > SMALL_BODY_BYTES and key_from_headers(headers) is None and self._after_running(call):
            self._refuse(InvalidKey(), dialect, call.id)
        elif before is None or before.response_complete:
            self._start_asgi_task(call, self.app)  # type: ignore[arg-type]
        else:
            self._queue(call, self.app)

    def _to_fastapi(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if self.refused or self.upgrading:
            return
        if type(cycle) is Call:
            cycle.pieces.append(body)
            cycle.size += len(body)
            if cycle.size > BODY_BYTES_MAX:
                self._refuse_body(cycle)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle: Any = self.cycle
        if self.refused or self.upgrading:
            return
        self.lane.reading.pop(self, None)
        if type(cycle) is not Call:
            super().on_message_complete()
        else:
            cycle.whole = True
            if cycle.turn:
                begin(cycle)

    # Turns: answers go out in the order of the requests

    def _queue(self, cycle: Any, app: Any) -> None:
        self.flow.pause_reading()
        self.pipeline.appendleft((cycle, app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """The next turn, of either kind. uvicorn's name for it."""
        if self.turn_waits:
            self._queue(cycle, app)
            return
        call: Any = cycle
        self.front = call
        if type(call) is not Call:
            super()._start_asgi_task(cycle, app)
            return
        call.turn = True
        if call.whole:
            begin(call)
            return
        self.flow.resume_reading()
        if call.headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def call_ended(self, call: Call, keep_alive: bool) -> None:
        """The last byte of a call's answer was written."""
        if not keep_alive and not self.transport.is_closing():
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.front = None
        if self.transport.is_closing():
            self._watch_the_rest()
        elif self.flow.write_paused:
            # Answers that nobody reads are not added to.
            self.turn_waits = True
            self.flow.pause_reading()
        else:
            self._next_turn()

    def _next_turn(self) -> None:
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self.lane.idle[self] = self.loop.time()  # the lane sweeps, so that no call needs a timer

    # Writing

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.lane.blocked[self] = self.loop.time(), self.unsent()
        if type(self.front) is Call:
            self.front.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self.lane.blocked.pop(self, None)
        if type(self.front) is Call:
            self.front.resume()
        elif self.turn_waits:
            self.turn_waits = False
            if not self.transport.is_closing():
                self._next_turn()

    def unsent(self) -> int:
        """Bytes that the caller has not taken."""
        return self.transport.get_write_buffer_size()

    # Ends

    def connection_lost(self, exc: Exception | None) -> None:
        self.lane.idle.pop(self, None)
        self.lane.reading.pop(self, None)
        self.lane.blocked.pop(self, None)
        self.pipeline.clear()
        self.turn_waits = False
        front, self.front = self.front, None
        if front is not None and type(front) is not Call:
            # The parent tells the request that was read last only.
            front.disconnected = True
            front.message_event.set()
        super().connection_lost(exc)
        if type(front) is Call and front.whole:
            front.caller_left()

    def shutdown(self) -> None:
        self.lane.begin_ending()
        if self.front is None or (type(self.front) is Call and not self.front.whole):
            self._close()  # nothing has begun, of half a request neither
        else:
            self.front.keep_alive = False

    def give_up(self) -> None:
        """The caller takes nothing any more: it counts as gone, and pays for what was delivered."""
        self.transport.abort()

    def close_idle(self) -> None:
        self.lane.idle.pop(self, None)
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_the_rest()

    def _watch_the_rest(self) -> None:
        """A connection closes when its last byte was taken; one whose caller takes nothing is given up."""
        if self.unsent():
            self.lane.blocked.setdefault(self, (self.loop.time(), self.unsent()))

    def request_timed_out(self) -> None:
        """The rest of a request did not come in time."""
        if self.turn_waits or (self.front is not None and is_read(self.front)):
            # It was not read: an answer is going out first. Its time begins after that.
            self.lane.reading[self] = self.loop.time()
            return
        self._refuse_head(RequestTimedOut())

    def _refuse_head(self, error: GatewayError) -> None:
        if self._after_running(None):
            self._refuse(error, None, new_id())

    def _refuse_body(self, call: Call) -> None:
        if self._after_running(call):
            self._refuse(BodyTooLarge(BODY_BYTES_MAX), call.dialect, call.id)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets its refusal in the wire's shape too (the parent's is plain text)."""
        self._refuse_head(InvalidRequest("This is not a valid HTTP/1.1 request.", code="invalid_http"))

    def _after_running(self, call: Call | None) -> bool:
        """Whether a refusal may be written now: an answer that is going out stays whole, and ends it all."""
        front = self.front
        if front is None:
            if not self.pipeline:
                return True
            self._close()  # those that wait have not begun
        elif isinstance(front, Call):
            if front is call or not front.whole:
                return True
            front.keep_alive = False
        elif is_read(front) or front.response_started:
            front.keep_alive = False
        else:
            # It is the one whose body is refused: FastAPI hears that nobody waits for its answer.
            front.disconnected = True
            front.message_event.set()
            return True
        self.refused = True
        return False

    def _refuse(self, error: GatewayError, dialect: Dialect | None, request_id: str) -> None:
        self.refused = True
        self.lane.reading.pop(self, None)
        body = reply.error_body(error, dialect, request_id)
        self.write(reply.json_reply(self.lane.common, error.status, body, request_id, b"", keep_alive=False))
        # A close with unread input would reset the connection, and the refusal would never be read: what
        # the caller is still sending is read and dropped for a while.
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self._close)


def is_read(front: Call | RequestResponseCycle) -> bool:
    """Whether a request is here whole."""
    return front.whole if isinstance(front, Call) else not front.more_body


def is_plain(headers: dict[bytes, bytes], version: str) -> bool:
    """Whether a head says as RFC 9112 wants it where the request goes (3.2) and how its body ends (6.1)."""
    coding = headers.get(b"transfer-encoding")
    return (b"host" in headers or version == "1.0") and (
        coding is None or coding.strip().lower() == b"chunked"
    )


def is_ambiguous(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a header that may stand once only stands twice: two servers could read two requests in it."""
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in ONCE)


def lane_path(url: bytes) -> Dialect | None:
    """The wire that a less usual spelling of a path names: with a query, in full, or percent-encoded."""
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        return None
    return BY_PATH.get(unquote_to_bytes(path) if b"%" in path else path)


def bound_to(lane: Lane) -> type[LaneProtocol]:
    """The protocol class for uvicorn's `http=`, with its lane in it."""
    return type("BoundLaneProtocol", (LaneProtocol,), {"lane": lane})
