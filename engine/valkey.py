"""A lean client for Valkey: callbacks and no task per call, commands grouped into one write per loop turn.

One connection, replies in order. What a caller may rely on:

- Each call ends exactly once, with a reply or a ValkeyError, within `deadline`. A server that does not answer
  for that long (frozen, unreachable) is taken for lost: all calls in flight end with ValkeyUnavailable.
- While the server is away for less than `patience`, new calls wait for it; after that they end at once.
- Once the client is connected again, a call that ended with ValkeyUnavailable has either been carried out
  before or never will be: the old connection is killed on the server before the new one is used.
- One log line when the server goes away and one when it is back.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from hashlib import sha1
from urllib.parse import unquote, urlsplit

from engine.errors import ValkeyError, ValkeyNotSent, ValkeyRefused, ValkeyUnavailable
from engine.resp import BrokenReply, Reply, ReplyReader, pack

log = logging.getLogger(__name__)

Then = Callable[[Reply | ValkeyError], None]

DEADLINE = 1.0  # seconds
TICKS = 10  # ticks per deadline; a call that is TICKS - 1 whole ticks old is overdue
BACKOFF_FIRST = 0.05  # seconds
BACKOFF_MAX = 0.5  # seconds; short, because apps wait for it
MAX_PENDING = 20_000  # calls in flight, and as many waiting for a connection
MAX_UNSENT = 32 << 20  # bytes in the socket's buffer beyond which calls are turned away

PING = pack((b"PING",))


class ValkeyClient:
    """One server. It begins to connect at once, and calls may be made before it has.

    url: redis://[user]:password@host:port/db, or rediss:// for TLS. name: for the log.
    deadline: seconds for an answer. patience: how long an outage is waited out by new calls, in seconds.
    connected: calls are sent at once. run_id: the server process's own id (empty when it does not say).
    on_connected: called after each connect, before anything that waited is sent.
    """

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str = "valkey",
        deadline: float = DEADLINE,
        patience: float = DEADLINE,
        max_pending: int = MAX_PENDING,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "valkey", "valkeys") or not parts.hostname:
            raise ValkeyError(
                f"The address of the {name} server must look like redis://:password@host:port/0."
            )
        self._host, self._port, self._tls = (
            parts.hostname,
            parts.port or 6379,
            parts.scheme[-2:] in ("ss", "ys"),
        )
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._database = parts.path.strip("/") or "0"
        self.loop, self._name = loop, name
        self._tick_seconds = deadline / TICKS
        self._deadline, self._patience_ticks = deadline, round(patience / self._tick_seconds)
        self._max_pending = max_pending
        self.connected = False
        self.run_id = b""
        self.on_connected: list[Callable[[], None]] = []
        self._scripts: dict[bytes, bytes] = {}  # sha -> source
        self._connection: _Connection | None = None
        self._client_id = 0
        self._waiting: deque[tuple[bytes, Then, int]] = deque()
        self._tick_count = 0
        self._away_since: int | None = 0  # in ticks
        self._said_away = False
        self._task = loop.create_task(self._stay_connected(), name=f"valkey {name}")
        self._timer = loop.call_later(self._tick_seconds, self._tick)

    # -- calls

    def call(self, args: tuple[bytes, ...], then: Then) -> None:
        """Send one command. `then` gets its reply; it is never called before this returns."""
        self.send(pack(args), then)

    def send(self, packed: bytes, then: Then) -> None:
        """Like `call`, for a command packed before."""
        connection = self._connection
        if connection is None or not self.connected:
            self._wait(packed, then)
            return
        pending, out = connection.pending, connection.out
        if len(pending) >= self._max_pending or connection.clogged:
            self.loop.call_soon(then, ValkeyNotSent(f"Too many calls wait for the {self._name} server."))
            return
        pending.append(then)
        if not out:
            self.loop.call_soon(connection.flush)
        out.append(packed)

    def ask(self, *args: bytes) -> "asyncio.Future[Reply]":
        """Like `call`, for who can wait: the reply. Raises ValkeyError, also for the server's refusals."""
        future: asyncio.Future[Reply] = self.loop.create_future()

        def answered(reply: Reply | ValkeyError) -> None:
            if future.done():
                return
            if isinstance(reply, ValkeyError):
                future.set_exception(reply)
                future.exception()  # whoever asked may have given up: then it is nobody's
            else:
                future.set_result(reply)

        self.call(args, answered)
        return future

    def script(self, source: bytes) -> bytes:
        """Register a Lua script, which is loaded at each connect. Returns its sha for EVALSHA."""
        sha = sha1(source, usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = source
        if self.connected and self._connection is not None:
            self._connection.send(pack((b"SCRIPT", b"LOAD", source)), _nothing)
        return sha

    def resend(self, packed: bytes, then: Then) -> None:
        """Send again a command that ended with NOSCRIPT, after the scripts."""
        if self.connected and self._connection is not None:
            for source in self._scripts.values():
                self._connection.send(pack((b"SCRIPT", b"LOAD", source)), _nothing)
        self.send(packed, then)

    # -- life

    def close(self) -> None:
        """Close for good; calls that are not answered yet end with ValkeyUnavailable."""
        self._timer.cancel()
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()
        self._end_waiting(len(self._waiting))

    async def stop(self) -> None:
        """Close, and wait until nothing of it is left."""
        self.close()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _stay_connected(self) -> None:
        backoff = BACKOFF_FIRST
        while True:
            connection: _Connection | None = None
            try:
                async with asyncio.timeout(self._deadline):
                    connection = await self._open()
                    await self._greet(connection)
            except (OSError, ValkeyError) as error:
                if connection is not None:
                    connection.close()
                self._went_away(error)
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
                backoff = min(backoff * 2, BACKOFF_MAX)
                continue
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            backoff = BACKOFF_FIRST
            self._came_back(connection)
            self._went_away(await connection.lost)

    async def _open(self) -> "_Connection":
        self._connection = None
        _, connection = await self.loop.create_connection(
            lambda: _Connection(self.loop, self._name, self._lost),
            self._host,
            self._port,
            ssl=self._tls or None,
        )
        return connection

    async def _greet(self, connection: "_Connection") -> None:
        """Sign in, load the scripts, and put an end to the connection before this one."""
        steps: list[tuple[bytes, ...]] = []
        if self._password:
            user = (self._user.encode(),) if self._user else ()
            steps.append((b"AUTH", *user, self._password.encode()))
        if self._database != "0":
            steps.append((b"SELECT", self._database.encode()))
        steps.append((b"PING",))  # refused while the server still loads its file
        steps += [(b"SCRIPT", b"LOAD", source) for source in self._scripts.values()]
        steps += [(b"CLIENT", b"ID"), (b"INFO", b"server")]
        asked = [self._ask(connection, step) for step in steps]
        *firsts, client_id, info = [await reply for reply in asked]
        for reply in firsts:
            if isinstance(reply, ValkeyError):
                raise reply
        if not isinstance(client_id, int):
            raise BrokenReply("The server does not say CLIENT ID; Valkey or Redis 6.2 or later is needed.")
        run_id = b""
        if isinstance(info, bytes):
            run_id = info.partition(b"run_id:")[2].partition(b"\r\n")[0]
        if self._client_id and run_id == self.run_id:
            # A frozen server may still hold commands of the old connection: they must not run after ours.
            killed = await self._ask(connection, (b"CLIENT", b"KILL", b"ID", b"%d" % self._client_id))
            if isinstance(killed, ValkeyRefused):
                log.warning("the %s server does not allow CLIENT KILL: %s", self._name, killed)
        self._client_id, self.run_id = client_id, run_id

    def _ask(
        self, connection: "_Connection", args: tuple[bytes, ...]
    ) -> "asyncio.Future[Reply | ValkeyError]":
        future: asyncio.Future[Reply | ValkeyError] = self.loop.create_future()

        def answered(reply: Reply | ValkeyError) -> None:
            if future.done():
                return
            if isinstance(reply, ValkeyError) and not isinstance(reply, ValkeyRefused):
                future.set_exception(reply)
                future.exception()  # whoever awaits it may have given up: then it must not be logged
            else:
                future.set_result(reply)

        connection.send(pack(args), answered)
        return future

    # -- states

    def _came_back(self, connection: "_Connection") -> None:
        self._connection, self.connected = connection, True
        if self._said_away:
            away = (self._tick_count - (self._away_since or 0)) * self._tick_seconds
            log.warning(
                "the %s server at %s:%d is back after %.1f s", self._name, self._host, self._port, away
            )
            self._said_away = False
        self._away_since = None
        for announce in self.on_connected:
            try:
                announce()
            except Exception:
                log.exception("what follows a connect to the %s server failed", self._name)
        waiting, self._waiting = self._waiting, deque()
        for packed, then, _ in waiting:
            self.send(packed, then)

    def _lost(self, connection: "_Connection") -> None:
        if connection is self._connection and self.connected:
            self.connected = False
            self._away_since = self._tick_count

    def _went_away(self, reason: BaseException) -> None:
        if not self._said_away:
            self._said_away = True
            why = str(reason) or "it did not answer in time"
            log.warning("the %s server at %s:%d is away: %s", self._name, self._host, self._port, why)

    def _wait(self, packed: bytes, then: Then) -> None:
        since = self._tick_count if self._away_since is None else self._away_since
        until = min(since + self._patience_ticks, self._tick_count + TICKS - 1)
        if until > self._tick_count and len(self._waiting) < self._max_pending:
            self._waiting.append((packed, then, until))
        else:
            self.loop.call_soon(then, ValkeyNotSent(f"The {self._name} server is away."))

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self._tick_seconds, self._tick)
        self._tick_count += 1
        waiting = self._waiting
        overdue = 0
        for _, _, until in waiting:
            if until > self._tick_count:
                break
            overdue += 1
        self._end_waiting(overdue)
        if self.connected and self._connection is not None:
            self._connection.tick()

    def _end_waiting(self, count: int) -> None:
        for _ in range(count):
            _, then, _ = self._waiting.popleft()
            _deliver(then, ValkeyNotSent(f"The {self._name} server is away."))


class _Connection(asyncio.Protocol):
    """One connection: what was sent and not answered yet, in order. `lost` ends with the reason."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, on_lost: "Callable[[_Connection], None]"
    ) -> None:
        self._loop, self._name, self._on_lost = loop, name, on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = ReplyReader()
        self.out: list[bytes] = []
        self._answered = 0
        self._sent_at_ticks: deque[int] = deque(maxlen=TICKS)  # calls sent so far, as of the last ticks
        self.pending: deque[Then] = deque()
        self.clogged = False
        self.lost: asyncio.Future[Exception] = loop.create_future()

    def send(self, packed: bytes, then: Then) -> None:
        if self.lost.done():
            self._loop.call_soon(then, ValkeyNotSent(f"The {self._name} server is away."))
            return
        self.pending.append(then)
        out = self.out
        if not out:
            self._loop.call_soon(self.flush)
        out.append(packed)

    def tick(self) -> None:
        """Called TICKS times per deadline. Counts ticks, not time: a pause of our own process is no fault."""
        sent = self._answered + len(self.pending)
        ticks = self._sent_at_ticks
        if len(ticks) == TICKS and ticks[0] == sent and not self.pending:
            self.send(PING, _nothing)  # idle: a dead peer is found before a call needs it
        elif len(ticks) >= TICKS - 1 and ticks[-(TICKS - 1)] > self._answered:
            self.close(ValkeyUnavailable(f"The {self._name} server did not answer in time."))
            return
        ticks.append(sent)

    def close(self, reason: Exception | None = None) -> None:
        """Give the connection up at once; all that is pending ends with ValkeyUnavailable."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason or ValkeyUnavailable(f"The connection to the {self._name} server was closed."))

    def flush(self) -> None:
        """Write all that was sent during this turn of the loop, in one go."""
        out, self.out = self.out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self.clogged = True

    def _end(self, reason: Exception) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._on_lost(self)
        error = ValkeyUnavailable(str(reason))
        pending = self.pending
        while pending:
            _deliver(pending.popleft(), error)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._reader.feed(data)
        except BrokenReply as error:
            self.close(error)
            return
        pending = self.pending
        next_then = pending.popleft
        if len(replies) > len(pending):
            self.close(BrokenReply("The server answered more than it was asked."))
            return
        self._answered += len(replies)
        for reply in replies:
            then = next_then()
            try:
                then(reply)
            except Exception:
                log.exception("what follows a reply of the %s server failed", self._name)

    def resume_writing(self) -> None:
        self.clogged = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ValkeyUnavailable("it closed the connection"))


def _deliver(then: Then, reply: Reply | ValkeyError) -> None:
    try:
        then(reply)
    except Exception:
        log.exception("what follows a lost call failed")


def _nothing(reply: Reply | ValkeyError) -> None:
    """For commands whose reply nobody needs."""
