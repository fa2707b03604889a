"""Where the next segment comes from, and what happens when none is to be had."""

import asyncio
import itertools
import logging
import os
import socket
import time
from concurrent.futures import Executor
from pathlib import Path

from ledger.errors import JournalFull
from ledger.journal.segments import Segment, SegmentName, create

RETRY_SECONDS = 0.25  # between two tries to get room on a full disk
LOOK_SECONDS = 1.0  # between two looks for room while nobody asks for it
FAILING_SECONDS = 5.0  # the longest pause before another file is tried on a disk that fails again and again

log = logging.getLogger(__name__)


class Room:
    """Makes segments, one ahead of need. Allocating takes a millisecond or more: `thread` does it if it can.

    `reason` says why there is no room, or is empty; it becomes empty by itself when there is room again, also
    while nobody calls.
    """

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, thread: Executor, segment_bytes: int
    ) -> None:
        self.reason = ""
        self._folder = folder
        self._loop = loop
        self._thread = thread
        self._segment_bytes = segment_bytes
        self._process = socket.gethostname(), os.getpid(), time.time_ns() // 1000
        self._numbers = itertools.count(1)  # its next() is one step, also beside the thread's
        self._spare: Segment | None = None
        self._coming: asyncio.Future[Segment] | None = None
        self._spare_after = 0.0  # loop time before which no spare is ordered
        self._until = 0.0  # loop time before which a full disk is not asked again
        self._failed_at = -1e9
        self._failing_pause = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._stopped = False

    def first(self) -> Segment:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._create(self._segment_bytes)

    def next(self, need: int) -> Segment:
        """A segment of at least `need` bytes. Raises JournalFull when there is none to be had."""
        if self._spare is not None and self._spare.size >= need:
            segment, self._spare = self._spare, None
        elif self._loop.time() < self._until:
            raise JournalFull(self.reason)
        else:
            try:
                segment = self._create(max(self._segment_bytes, need))
            except OSError as error:
                if not self.reason:
                    log.error("journal is full: %s (%s)", error.strerror, self._folder)
                self._none(f"The journal has no room for another call ({error.strerror}).", RETRY_SECONDS)
                raise JournalFull(self.reason) from error
        self._found()
        return segment

    def ahead(self) -> None:
        """Have the next one made, if it is not on its way."""
        if self._spare is None and self._coming is None and self._loop.time() >= self._spare_after:
            self._order()

    def failed(self, error: OSError) -> None:
        """A segment broke. The next is tried at once, later ones with growing pauses."""
        now = self._loop.time()
        if now - self._failed_at > 2 * FAILING_SECONDS:
            self._failing_pause = 0.0
        else:
            self._failing_pause = min(max(2 * self._failing_pause, RETRY_SECONDS), FAILING_SECONDS)
            self._none(f"The journal cannot be written ({error.strerror}).", self._failing_pause)
        self._failed_at = now

    def retry_now(self) -> None:
        self._until = 0.0

    async def stop(self) -> None:
        """Take away the spare."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
        if self._coming is not None:
            await asyncio.wait([self._coming])
            await asyncio.sleep(0)  # its done callback comes after ours
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _create(self, size: int) -> Segment:
        return create(self._folder, SegmentName(*self._process, next(self._numbers)), size)

    def _none(self, reason: str, pause: float) -> None:
        self.reason = reason
        self._until = self._loop.time() + pause
        self._look_later()

    def _found(self) -> None:
        if self.reason:
            log.warning("journal has room again in %s", self._folder)
        self.reason = ""
        self._until = 0.0

    def _look_later(self) -> None:
        if self._looking is None and not self._stopped:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        if self.reason and self._spare is None and self._coming is None:
            self._order()

    def _order(self) -> None:
        self._coming = self._loop.run_in_executor(self._thread, self._create, self._segment_bytes)
        self._coming.add_done_callback(self._came)

    def _came(self, coming: "asyncio.Future[Segment]") -> None:
        self._coming = None
        error = coming.exception()
        if error is None:
            self._spare = coming.result()
            self._found()
        elif isinstance(error, OSError):
            # Without a reason it is not full yet: the current segment has room.
            self._spare_after = self._loop.time() + RETRY_SECONDS
            if self.reason:
                self._look_later()
        else:
            raise error
