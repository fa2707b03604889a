"""The journal of one process: two records per call, on local disk before what they announce happens.

Records appended during one turn of the event loop go to the kernel in one write, then their callbacks run
in order. What the kernel has survives the death of the process; what is synced survives the death of the
host.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from ledger.errors import CallNotOpen, JournalFull
from ledger.journal.frames import HEADER_BYTES, frame
from ledger.journal.records import CloseRecord, OpenRecord, encode_close, encode_open
from ledger.journal.room import RETRY_SECONDS, Room
from ledger.journal.segments import Segment

SEGMENT_BYTES = 8 << 20
SYNC_SECONDS = 0.05
CLOSE_ROOM = 2048  # bytes reserved for each open call's close, frame header included

_CLOSE_LIMIT = CLOSE_ROOM - HEADER_BYTES
_STOPPING = "This process is stopping and takes no more calls."

Then: TypeAlias = Callable[[], None]
# (frames, then, failed, call id, where). Without `failed` it must be written, if need be elsewhere and later.
_Entry: TypeAlias = tuple[bytes, Then, Then | None, str, Segment]

_Failures: TypeAlias = list[tuple[Segment, OSError]]

log = logging.getLogger(__name__)


class Journal:
    """Appends opens and closes. Not for several threads: all methods are called on the loop's own.

    `folder` is made when missing. Every segment is `segment_bytes` large and fully allocated. With `strict`
    a record counts as written only when it is synced. Raises JournalFull when there is no room for the
    first segment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        segment_bytes: int = SEGMENT_BYTES,
        sync_seconds: float = SYNC_SECONDS,
        strict: bool = False,
    ) -> None:
        self._loop = loop
        self._sync_seconds = 0.0 if strict else sync_seconds
        self._strict = strict
        self._calls: dict[str, Segment] = {}
        self._batch: list[_Entry] = []
        self._touched: list[Segment] = []
        self._unsynced: list[_Entry] = []  # strict: written, their callbacks wait for the sync
        self._homeless: list[_Entry] = []  # closes whose write failed
        self._flush_planned = False
        self._rehouse_timer: asyncio.TimerHandle | None = None
        self._sync_planned = False
        self._sync_running: asyncio.Future[_Failures] | None = None
        self._stopped = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._room = Room(folder, loop, self._thread, segment_bytes)
        try:
            self._current = self._room.first()
        except OSError as error:
            raise JournalFull(
                f"No journal can be kept in {folder}: {error.strerror}. Make room or name another folder."
            ) from error
        self._held = [self._current]

    # What the lane calls

    def open(self, call: OpenRecord, then: Then, failed: Then) -> None:
        """Write the open and reserve room for its close; then one of the two is called, once.

        Raises JournalFull when there is no room for both, and then calls neither.
        """
        if self._stopped:
            raise JournalFull(_STOPPING)
        record = frame(encode_open(call))
        segment = self._place(len(record), CLOSE_ROOM)
        self._calls[call.id] = segment
        segment.calls += 1
        self._append((record, then, failed, call.id, segment))

    def close_call(self, close: CloseRecord, then: Then) -> None:
        """Write the close; `then` is called once it is written, on a failing disk as late as that becomes
        possible.

        Raises CallNotOpen for a call that is not open, or not any more.
        """
        segment = self._calls.pop(close.id, None)
        if segment is None:
            raise CallNotOpen(f"call {close.id} is not open")
        segment.calls -= 1
        record = frame(encode_close(close, _CLOSE_LIMIT))
        if segment.broken:
            self._homeless.append((record, then, None, close.id, segment))
            self._rehouse()
            self._release_if_done(segment)
        else:
            self._append((record, then, None, close.id, segment))

    def both(self, call: OpenRecord, close: CloseRecord, then: Then, failed: Then | None = None) -> None:
        """Write a call that is over as soon as it began (a cache hit). Raises JournalFull when there is no
        room."""
        if self._stopped:
            raise JournalFull(_STOPPING)
        record = frame(encode_open(call)) + frame(encode_close(close, _CLOSE_LIMIT))
        segment = self._place(len(record), 0)
        self._append((record, then, failed, call.id, segment))

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    @property
    def full_reason(self) -> str:
        """Why no call could be opened at the last try; empty when all is well."""
        return self._room.reason

    async def stop(self) -> None:
        """Write and sync what was handed in, then let the drainer have all files.

        Calls that are still open now end as `interrupted`.
        """
        self._stopped = True
        self._room.retry_now()
        self._rehouse()
        while True:
            self._flush()
            if self._sync_running is not None:
                await asyncio.wait([self._sync_running])
                await asyncio.sleep(0)  # its done callback comes after ours
            elif any(segment.dirty for segment in self._held):
                self._begin_sync()
            else:
                break
        if self._homeless:
            log.error("%d closes could not be written: their calls end as interrupted", len(self._homeless))
        await self._room.stop()
        if self._rehouse_timer is not None:
            self._rehouse_timer.cancel()
        for segment in self._held:
            segment.release()
        self._held.clear()
        self._calls.clear()
        self._thread.shutdown()

    def _place(self, record: int, reserve: int) -> Segment:
        """Where a record of so many bytes goes. Raises JournalFull when it fits nowhere."""
        segment = self._current
        used = segment.end + segment.calls * CLOSE_ROOM + record + reserve
        if used > segment.size or segment.broken:
            previous, self._current = segment, self._room.next(record + reserve)
            segment = self._current
            self._held.append(segment)
            self._release_if_done(previous)
        elif used > segment.size >> 1:
            self._room.ahead()
        return segment

    def _broke(self, segment: Segment, error: OSError) -> None:
        """Nothing more goes to this file."""
        log.error("journal cannot be written: %s (%s)", error.strerror, segment.path)
        segment.broken = True
        self._room.failed(error)

    def _release_if_done(self, segment: Segment) -> None:
        if segment not in self._held:
            return  # let go already, by the one who put its last closes elsewhere
        if segment is self._current or segment.calls or segment.queue or segment.syncing:
            return
        if segment.dirty and not segment.broken:
            return  # after the next sync
        if segment.written:
            segment.release()
        else:
            segment.discard()
        self._held.remove(segment)

    # Writing

    def _append(self, entry: _Entry) -> None:
        segment = entry[4]
        if not segment.queue:
            self._touched.append(segment)
        segment.queue.append(entry[0])
        segment.end += len(entry[0])
        self._batch.append(entry)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        batch, self._batch = self._batch, []
        touched, self._touched = self._touched, []
        if not batch:
            return
        lost = False
        for segment in touched:
            try:
                segment.write()
            except OSError as error:
                self._broke(segment, error)
                lost = True
        if not self._sync_planned:
            self._sync_planned = True
            self._loop.call_later(self._sync_seconds, self._begin_sync)
        if lost:
            self._failed([entry for entry in batch if entry[4].broken])
            batch = [entry for entry in batch if not entry[4].broken]
        if self._strict:
            self._unsynced += batch
        else:
            self._done(batch)
        for segment in touched:
            if segment is not self._current:
                self._release_if_done(segment)

    def _done(self, entries: list[_Entry]) -> None:
        for entry in entries:
            try:  # not _tell: this is the hot path
                entry[1]()
            except Exception as error:
                self._complain(error)

    def _failed(self, entries: list[_Entry]) -> None:
        """Opens are told so; what must not be lost looks for another home."""
        never_ran = set()
        for record, then, failed, call_id, segment in entries:
            if failed is not None:
                never_ran.add(call_id)
                if self._calls.pop(call_id, None) is not None:
                    segment.calls -= 1
                self._tell(failed)
            elif call_id in never_ran:
                self._tell(then)  # the close of a call whose open failed: there is nothing to write
            else:
                self._homeless.append((record, then, None, call_id, segment))
        self._rehouse()

    def _rehouse(self) -> None:
        """Put closes whose segment failed into another; they are matched by process, so any will do."""
        homeless, self._homeless = self._homeless, []
        for number, (record, then, failed, call_id, _) in enumerate(homeless):
            try:
                segment = self._place(len(record), 0)
            except JournalFull:
                self._homeless = homeless[number:]
                if self._rehouse_timer is not None:
                    self._rehouse_timer.cancel()
                self._rehouse_timer = self._loop.call_later(RETRY_SECONDS, self._rehouse)
                return
            self._append((record, then, failed, call_id, segment))

    def _tell(self, what: Then) -> None:
        try:
            what()
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a journal callback failed", "exception": error})

    # Syncing

    def _begin_sync(self) -> None:
        self._sync_planned = False
        if self._sync_running is not None:
            return  # its end plans the next one
        dirty = [segment for segment in self._held if segment.dirty]
        if not dirty:
            return
        for segment in dirty:
            segment.dirty = False
            segment.syncing = True
        waiting, self._unsynced = self._unsynced, []
        running = self._loop.run_in_executor(self._thread, _sync, dirty)
        self._sync_running = running
        running.add_done_callback(lambda done: self._synced(done, dirty, waiting))

    def _synced(
        self, running: "asyncio.Future[_Failures]", segments: list[Segment], waiting: list[_Entry]
    ) -> None:
        self._sync_running = None
        failures = running.result()
        for segment, error in failures:
            self._broke(segment, error)
        for segment in segments:
            segment.syncing = False
            self._release_if_done(segment)
        if failures:
            self._failed([entry for entry in waiting if entry[4].broken])
            waiting = [entry for entry in waiting if not entry[4].broken]
        self._done(waiting)
        if (self._unsynced or any(s.dirty for s in self._held)) and not self._sync_planned:
            self._sync_planned = True
            self._loop.call_later(self._sync_seconds, self._begin_sync)


def _sync(segments: list[Segment]) -> _Failures:
    """In the thread. Gives back those that failed: what was not on disk before may never be."""
    failures = []
    for segment in segments:
        try:
            os.fdatasync(segment.fd)
        except OSError as error:
            failures.append((segment, error))
    return failures
