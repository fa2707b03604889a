"""Connections to engines: HTTP/1.1 on asyncio protocols, by callbacks, no task per call.

An `Upstream` keeps the connections to one address. A call hands it whole request bytes and a
`Listener`; what comes back is pushed to the listener as it arrives. Timeouts are the caller's business
(it calls `abort`), except connecting, which is bounded here.
"""

import asyncio
import socket
from typing import Protocol, cast

import httptools

CONNECT_SECONDS = 2.0
# An engine closes idle connections (vLLM and the light engine after 5 s). Ours are given up well before,
# so that a request never meets a closing socket.
IDLE_SECONDS = 2.0
# After this long an idle socket is looked at for a FIN before it carries a request.
LOOK_AFTER_SECONDS = 0.2
# A finished stream whose engine does not end the message in this time loses its connection.
LINGER_SECONDS = 1.0


class Listener(Protocol):
    """What a call hears of its exchange. After `upstream_end` or `upstream_lost` nothing more comes."""

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    def upstream_body(self, data: bytes) -> None: ...

    def upstream_end(self) -> None: ...

    def upstream_lost(self, reason: str, sent: bool) -> None:
        """The exchange failed. `sent` is False when surely no byte of the request reached the engine."""


class Exchange:
    """One request and its answer; what a call holds to steer it."""

    __slots__ = ("connection", "listener", "over", "paused", "reused", "upstream")

    def __init__(self, upstream: "Upstream", listener: Listener) -> None:
        self.upstream, self.listener = upstream, listener
        self.connection: Connection | None = None
        self.over = self.paused = False
        self.reused = False  # it goes over a connection that carried another before

    def abort(self) -> None:
        """Close the engine's connection: the engine stops working for this call. Nothing more is heard."""
        self.over = True
        if self.connection is not None:
            self.connection.close()

    def let_end(self) -> None:
        """The answer is whole by its own words; the connection is kept when the message ends soon."""
        self.over = True
        if self.connection is not None:
            self.connection.linger()

    def pause(self) -> None:
        self.paused = True
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        self.paused = False
        if self.connection is not None:
            self.connection.resume_reading()


class Upstream:
    """The connections to one engine address. `limit` bounds them; beyond it `send` reports a loss at once."""

    def __init__(self, host: str, port: int, *, loop: asyncio.AbstractEventLoop, limit: int = 8192) -> None:
        self.host, self.port, self.loop, self.limit = host, port, loop, limit
        self.idle: list[Connection] = []
        self.open = 0
        self.heads: dict[tuple[str, bytes], bytes] = {}  # request heads that its users keep ready
        self.connecting: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, listener: Listener) -> Exchange:
        exchange = Exchange(self, listener)
        now = self.loop.time()
        while self.idle:
            connection = self.idle.pop()
            rested = now - connection.idle_since
            if rested > IDLE_SECONDS or (rested > LOOK_AFTER_SECONDS and not connection.is_quiet()):
                connection.close()
                continue
            exchange.reused = True
            connection.begin(exchange, request)
            return exchange
        if self.open >= self.limit:
            self.loop.call_soon(self._lost, exchange, "too many connections to this engine are open", False)
            return exchange
        self.open += 1
        task = self.loop.create_task(self._connect(exchange, request))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)
        return exchange

    async def _connect(self, exchange: Exchange, request: bytes) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self.host, self.port
                )
        except (OSError, TimeoutError, ValueError, RuntimeError):
            self.open -= 1
            self._lost(exchange, "the engine cannot be reached", False)
            return
        except BaseException:
            self.open -= 1
            raise
        if exchange.over:
            connection.rest()
            return
        try:
            connection.begin(exchange, request)
        except (OSError, RuntimeError):
            connection.fail("the engine closed the connection")

    def _lost(self, exchange: Exchange, reason: str, sent: bool) -> None:
        if not exchange.over:
            exchange.over = True
            exchange.listener.upstream_lost(reason, sent)

    def sweep(self) -> None:
        """Close what has rested too long; called about once a second."""
        oldest = self.loop.time() - IDLE_SECONDS
        stale = [connection for connection in self.idle if connection.idle_since < oldest]
        for connection in stale:
            connection.close()

    def drop_idle(self) -> None:
        for connection in list(self.idle):
            connection.close()

    def close(self) -> None:
        self.drop_idle()
        for task in self.connecting:
            task.cancel()


class Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time, in turn."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.exchange: Exchange | None = None
        self.ended: Exchange | None = None  # whose answer is whole, while the rest of the read is parsed
        self.keep = False
        self.idle_since = 0.0
        self.lingering: asyncio.TimerHandle | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.interim = self.headed = self.until_eof = False

    def is_quiet(self) -> bool:
        """False when the peer has closed or sent something unasked."""
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is None or self.transport.is_closing():
            return False
        # uvloop's own socket object has no recv; this one is let go again, so that it closes nothing.
        twin = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        try:
            twin.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            twin.detach()
        return False

    def begin(self, exchange: Exchange, request: bytes) -> None:
        self.exchange, exchange.connection = exchange, self
        self.headed = self.until_eof = False
        self.transport.write(request)
        if exchange.paused:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:
            self.close()  # words nobody asked for: this connection cannot be trusted
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.keep = False
            if self.ended is None:
                self.fail("the engine broke the HTTP protocol")
        if self.ended is not None:
            self._end()

    def on_message_begin(self) -> None:
        self.headers = []
        if self.exchange is None:
            self.keep = False  # more than was asked for: this connection cannot be trusted

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        self.interim = status < 200
        if self.interim or self.exchange is None:
            return
        self.headed = True
        names = dict(self.headers)
        self.until_eof = b"content-length" not in names and b"transfer-encoding" not in names
        if not self.exchange.over:
            self.exchange.listener.upstream_head(status, self.headers)

    def on_body(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and not exchange.over:
            exchange.listener.upstream_body(data)

    def on_message_complete(self) -> None:
        if self.interim:
            return
        if self.exchange is not None:
            self.ended, self.exchange = self.exchange, None
            self.keep = self.parser.should_keep_alive()

    def _end(self) -> None:
        """The answer is whole, and all that came with it was read."""
        exchange, self.ended = self.ended, None
        assert exchange is not None
        if self.lingering is not None:
            self.lingering.cancel()
            self.lingering = None
        exchange.connection = None
        if exchange.paused:
            self.resume_reading()
        if self.keep:
            self.rest()
        else:
            self.close()
        if not exchange.over:
            exchange.over = True
            exchange.listener.upstream_end()

    def rest(self) -> None:
        if self.closed or self.transport.is_closing():
            return
        self.idle_since = self.upstream.loop.time()
        self.upstream.idle.append(self)

    def linger(self) -> None:
        if self.exchange is not None:
            self.resume_reading()
            self.lingering = self.upstream.loop.call_later(LINGER_SECONDS, self.close)

    def pause_reading(self) -> None:
        if not self.closed and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.closed and not self.transport.is_closing():
            self.transport.resume_reading()

    def fail(self, reason: str) -> None:
        exchange, self.exchange = self.exchange, None
        self.close()
        if exchange is not None:
            exchange.connection = None
            self.upstream._lost(exchange, reason, True)

    def close(self) -> None:
        """Give the connection up now; buffered bytes are not waited for."""
        self.forget()
        self.transport.abort()

    def forget(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.upstream.open -= 1
        if self in self.upstream.idle:
            self.upstream.idle.remove(self)
        if self.lingering is not None:
            self.lingering.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self.forget()
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.connection = None
        if exchange.over:
            return
        if self.headed and self.until_eof and error is None:
            exchange.over = True
            exchange.listener.upstream_end()
        else:
            self.upstream._lost(exchange, "the engine closed the connection", True)


class Upstreams:
    """One `Upstream` for each engine address in use."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.by_address: dict[tuple[str, int], Upstream] = {}

    def at(self, host: str, port: int) -> Upstream:
        found = self.by_address.get((host, port))
        if found is None:
            found = self.by_address[host, port] = Upstream(host, port, loop=self.loop)
        return found

    def sweep(self) -> None:
        for upstream in self.by_address.values():
            upstream.sweep()

    def close(self) -> None:
        for upstream in self.by_address.values():
            upstream.close()
