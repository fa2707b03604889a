"""The lane: what all calls of one process share, and how the process ends without dropping one."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from api.lane.call import Call
from api.lane.counter import Counter
from api.limits.limiter import Limiter
from api.snapshot import Snapshot
from engine.balancer import Balancer
from engine.cache import ResultCache
from engine.upstream import Upstreams
from ledger.journal.writer import Journal

SWEEP_SECONDS = 0.25
KEEP_ALIVE_SECONDS = 75.0  # an idle connection of a caller is kept for so long
REQUEST_SECONDS = 60.0  # a request must be here whole after so long
BODY_BYTES_MAX = 32 << 20
# Streams are ended so long before the limit of the shutdown, so that their last bytes still go out.
ENDING_MARGIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may be silent, in seconds: before an answer begins, and within a stream."""

    first_byte: float = 600.0
    between: float = 60.0
    caller: float = 60.0  # how long a caller may take nothing of what is ready for it


class Lane:
    """The parts that calls are given, and the calls in flight."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        snapshot: Snapshot,
        limiter: Limiter,
        cache: ResultCache,
        journal: Journal,
        balancer: Balancer,
        upstreams: Upstreams,
        counter: Counter,
        patience: Patience,
        grace_seconds: float,
    ) -> None:
        self.loop, self.snapshot, self.limiter, self.cache, self.journal = (
            loop,
            snapshot,
            limiter,
            cache,
            journal,
        )
        self.balancer, self.upstreams, self.counter, self.patience = balancer, upstreams, counter, patience
        self.grace_seconds = grace_seconds
        self.log = logging.getLogger("api.lane")
        self.in_flight: set[Call] = set()
        self.idle: dict[Any, float] = {}  # connection -> since when (loop time)
        self.reading: dict[Any, float] = {}  # connection with half a request -> since when
        # Connection whose caller does not take what is ready -> since when, and how many bytes are left
        self.blocked: dict[Any, tuple[float, int]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending = False
        self.common = b""
        self._date_at = 0.0
        self._sweeper = loop.call_soon(self._sweep)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something off the path; it is waited for when the process ends."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _sweep(self) -> None:
        """What timers would do for each call, done for all in one go."""
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)  # first: no fault ends the sweeping
        now = self.loop.time()
        if now - self._date_at >= 1.0:
            self._date_at = now
            self.common = f"date: {formatdate(usegmt=True)}\r\n".encode()
            self.upstreams.sweep()
        first, between = now - self.patience.first_byte, now - self.patience.between
        late = [
            call
            for call in self.in_flight
            if call.on_engine and not call.left and not call.held_since
            and call.heard_at < (between if call.head_sent else first)
        ]  # fmt: skip
        for call in late:
            self._safely(call.timed_out)
        stuck = now - self.patience.caller
        for connection, (since, size) in list(self.blocked.items()):
            left = connection.unsent()
            if left < size:
                self.blocked[connection] = now, left
            elif since < stuck:
                self._safely(connection.give_up)
            else:
                self.blocked[connection] = since, left
        oldest = now - KEEP_ALIVE_SECONDS
        for connection in [connection for connection, since in self.idle.items() if since < oldest]:
            self._safely(connection.close_idle)
        oldest = now - REQUEST_SECONDS
        for connection in [connection for connection, since in self.reading.items() if since < oldest]:
            self._safely(connection.request_timed_out)

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:
            self.log.exception("a fault at the end of a call or connection")

    def begin_ending(self) -> None:
        """SIGTERM was seen: calls in flight may end by themselves until shortly before the limit."""
        if self.ending:
            return
        self.ending = True
        self.loop.call_later(max(0.0, self.grace_seconds - ENDING_MARGIN_SECONDS), self._end_calls)

    def _end_calls(self) -> None:
        for call in list(self.in_flight):
            self._safely(call.shut_down)

    async def stop(self) -> None:
        """After the server has closed its connections: nothing of a call may be left open."""
        self.ending = True
        self._end_calls()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=ENDING_MARGIN_SECONDS)
            self.counter.ending = True
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=ENDING_MARGIN_SECONDS)
        self._sweeper.cancel()
        self.upstreams.close()
