"""What the lane may rely on when it writes a journal."""

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import CallNotOpen, JournalFull
from ledger.journal import segments
from ledger.journal.records import CloseRecord, OpenRecord
from ledger.journal.room import RETRY_SECONDS
from ledger.journal.writer import CLOSE_ROOM, Journal
from tests.ledger.calls import closed, in_loop, never, nothing, opened, records

SMALL = 64 << 10  # bytes in a segment: about 27 calls that are open, or 90 whole ones
Work = Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, Any]]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_locked(path: Path) -> bool:
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def fill(journal: Journal, taken: list[OpenRecord]) -> JournalFull:
    """Opens calls until one is refused."""
    while True:
        call = opened()
        try:
            journal.open(call, nothing, never)
        except JournalFull as refused:
            return refused
        taken.append(call)


async def until(look: Callable[[], Any], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not look():
            await asyncio.sleep(0.005)


class Disk:
    """Makes writes, syncs and new files fail on demand, as the journal sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.create_error: int | None = None
        self.writes = 0
        self.syncs = 0
        pwrite, fdatasync, fallocate = os.pwrite, os.fdatasync, os.posix_fallocate

        def write(fd: int, data: bytes, offset: int) -> int:
            self.writes += 1
            if self.write_error is not None:
                raise OSError(self.write_error, os.strerror(self.write_error))
            return pwrite(fd, data, offset)

        def sync(fd: int) -> None:
            self.syncs += 1
            if self.sync_error is not None:
                raise OSError(self.sync_error, os.strerror(self.sync_error))
            fdatasync(fd)

        def allocate(fd: int, offset: int, size: int) -> None:
            if self.create_error is not None:
                raise OSError(self.create_error, os.strerror(self.create_error))
            fallocate(fd, offset, size)

        monkeypatch.setattr(segments.os, "pwrite", write)
        monkeypatch.setattr(segments.os, "fdatasync", sync)
        monkeypatch.setattr(segments.os, "posix_fallocate", allocate)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_record_is_in_the_file_before_its_callback_runs_and_callbacks_keep_their_order(
    tmp_path: Path,
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)
        calls = [opened() for _ in range(3)]
        seen: list[tuple[str, int]] = []
        for call in calls:
            journal.open(call, lambda id=call.id: seen.append((id, len(records(tmp_path)))), never)
        assert seen == []
        await asyncio.sleep(0)
        assert seen == [(call.id, 3) for call in calls]
        for call in calls:
            journal.close_call(closed(call), lambda id=call.id: seen.append((id, len(records(tmp_path)))))
        await asyncio.sleep(0)
        assert seen[3:] == [(call.id, 6) for call in calls]
        await journal.stop()
        assert records(tmp_path) == [*calls, *map(closed, calls)]

    in_loop(work)


def test_records_of_one_turn_of_the_loop_go_out_in_one_write(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)
        for _ in range(100):
            call = opened()
            journal.open(call, nothing, never)
            journal.close_call(closed(call), nothing)
            journal.both(call := opened(), closed(call), nothing)
        await asyncio.sleep(0)
        assert disk.writes == 1
        await journal.stop()
        assert len(records(tmp_path)) == 400

    in_loop(work)


def test_a_call_can_be_closed_once_and_only_when_it_was_opened(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)
        call = opened()
        with pytest.raises(CallNotOpen):
            journal.close_call(closed(call), nothing)
        journal.open(call, nothing, never)
        journal.close_call(closed(call), nothing)
        with pytest.raises(CallNotOpen):
            journal.close_call(closed(call), nothing)
        await journal.stop()
        assert records(tmp_path) == [call, closed(call)]

    in_loop(work)


def test_a_callback_that_fails_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        complaints: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        journal = Journal(tmp_path, loop=loop)
        ran: list[int] = []
        journal.open(opened(), never, never)
        journal.open(opened(), lambda: ran.append(2), never)
        await asyncio.sleep(0)
        assert ran == [2]
        assert len(complaints) == 1
        await journal.stop()

    in_loop(work)


def test_records_that_were_handed_in_survive_the_cancelling_of_every_task(tmp_path: Path) -> None:
    calls = [opened() for _ in range(10)]

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)

        async def lane(call: OpenRecord) -> None:
            journal.open(call, nothing, never)
            journal.close_call(closed(call), nothing)
            await asyncio.Event().wait()

        tasks = [loop.create_task(lane(call)) for call in calls]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await journal.stop()

    in_loop(work)
    assert records(tmp_path) == [record for call in calls for record in (call, closed(call))]


# Segments


def test_a_segment_is_allocated_in_full_and_locked_while_its_process_may_write_to_it(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size == SMALL
        assert path.stat().st_blocks * 512 >= SMALL
        assert is_locked(path)
        await journal.stop()
        assert not is_locked(path)

    in_loop(work)


def test_a_full_segment_is_let_go_once_its_last_call_is_closed_and_not_before(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL, sync_seconds=0.001)
        slow = opened()
        journal.open(slow, nothing, never)
        for _ in range(200):
            call = opened()
            journal.open(call, nothing, never)
            await asyncio.sleep(0)
            journal.close_call(closed(call), nothing)
        first, *_ = sorted(tmp_path.glob("*.journal"))
        await until(lambda: sum(map(is_locked, tmp_path.glob("*.journal"))) <= 3)  # first, current, spare
        assert is_locked(first)
        journal.close_call(closed(slow), nothing)
        await until(lambda: not is_locked(first))
        await journal.stop()
        assert len(records(tmp_path)) == 402

    in_loop(work)


def test_the_next_segment_is_made_ahead_of_need(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        for _ in range(20):
            journal.open(opened(), nothing, never)
        await until(lambda: journal._room._spare)
        disk.create_error = errno.ENOSPC  # nothing is created any more when the first one is full
        for _ in range(20):
            journal.open(opened(), nothing, never)
        await journal.stop()
        assert len(records(tmp_path)) == 40

    in_loop(work)


def test_stopping_leaves_no_empty_spare_and_no_unborn_file(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        for _ in range(20):
            journal.open(opened(), nothing, never)
        await journal.stop()
        assert len(files(tmp_path)) == 1

    in_loop(work)


# Room


def test_without_room_for_an_open_and_its_close_the_open_is_refused_and_every_close_still_fits(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        disk.create_error = errno.ENOSPC
        taken: list[OpenRecord] = []
        refused = fill(journal, taken)
        assert "No space left" in str(refused)
        assert refused.status == 503
        assert len(taken) > 20
        with pytest.raises(JournalFull):
            journal.both(call := opened(), closed(call), nothing)
        longest = [closed(call, flags=["f" * 60] * 100, error_code="e" * 5000) for call in taken]
        written: list[str] = []
        for close in longest:
            journal.close_call(close, lambda id=close.id: written.append(id))
        await asyncio.sleep(0)
        assert written == [call.id for call in taken]
        await journal.stop()
        assert len(records(tmp_path)) == 2 * len(taken)

    in_loop(work)


def test_when_there_is_room_again_calls_are_taken_again(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        disk.create_error = errno.ENOSPC
        fill(journal, [])
        disk.create_error = None
        with pytest.raises(JournalFull):
            journal.open(opened(), nothing, never)  # the disk is not asked for every refused call
        async with asyncio.timeout(RETRY_SECONDS * 20):
            while True:
                try:
                    journal.open(last := opened(), nothing, never)
                    break
                except JournalFull:
                    await asyncio.sleep(0.01)
        await journal.stop()
        assert records(tmp_path)[-1] == last

    in_loop(work)


def test_room_is_noticed_also_while_nobody_calls(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.journal.room.LOOK_SECONDS", 0.02)

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        assert journal.full_reason == ""
        disk.create_error = errno.ENOSPC
        fill(journal, [])
        assert "No space left" in journal.full_reason
        await asyncio.sleep(0.1)
        assert journal.full_reason
        disk.create_error = None
        await until(lambda: not journal.full_reason)
        journal.open(opened(), nothing, never)
        await journal.stop()
        assert len(files(tmp_path)) == 2

    in_loop(work)


def test_a_folder_without_room_for_the_first_segment_is_refused_at_once_and_left_clean(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        disk.create_error = errno.ENOSPC
        with pytest.raises(JournalFull, match="No space left"):
            Journal(tmp_path, loop=loop)
        assert files(tmp_path) == []

    in_loop(work)


def test_a_stopped_journal_takes_no_more_calls(tmp_path: Path) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)
        journal.open(late := opened(), nothing, never)
        await journal.stop()
        with pytest.raises(CallNotOpen):
            journal.close_call(closed(late), nothing)
        with pytest.raises(JournalFull, match="stopping"):
            journal.open(opened(), nothing, never)
        with pytest.raises(JournalFull, match="stopping"):
            journal.both(call := opened(), closed(call), nothing)

    in_loop(work)


# Failing disks


def test_an_open_that_cannot_be_written_says_so_and_closes_find_another_file(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        early, late = opened(), opened()
        outcomes: list[str] = []
        journal.open(early, nothing, never)
        await asyncio.sleep(0)
        disk.write_error = errno.EIO
        journal.open(late, lambda: outcomes.append("late ran"), lambda: outcomes.append("late failed"))
        journal.close_call(closed(early), lambda: outcomes.append("early closed"))
        await asyncio.sleep(0)
        assert outcomes == ["late failed"]
        with pytest.raises(CallNotOpen):
            journal.close_call(closed(late), nothing)
        disk.write_error = None
        await until(lambda: outcomes[1:] == ["early closed"])
        journal.open(another := opened(), nothing, never)
        await journal.stop()
        assert records(tmp_path) == [early, closed(early), another]

    in_loop(work)


def test_closes_wait_for_the_disk_and_are_written_when_it_is_back(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        calls = [opened() for _ in range(5)]
        for call in calls:
            journal.open(call, nothing, never)
        await asyncio.sleep(0)
        disk.write_error = disk.create_error = errno.EIO
        written: list[str] = []
        for call in calls:
            journal.close_call(closed(call), lambda id=call.id: written.append(id))
            await asyncio.sleep(0.02)
        assert written == []
        with pytest.raises(JournalFull):
            journal.open(opened(), nothing, never)
        disk.write_error = disk.create_error = None
        await until(lambda: sorted(written) == [call.id for call in calls])
        await journal.stop()
        assert sorted(r.id for r in records(tmp_path) if isinstance(r, CloseRecord)) == written

    in_loop(work)


def test_the_last_close_of_a_file_whose_sync_failed_is_taken_and_written_elsewhere(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL, sync_seconds=0.001)
        journal.open(call := opened(), nothing, never)
        disk.sync_error = errno.EIO
        await until(lambda: journal._current.broken)
        disk.sync_error = None
        first = journal._current
        written: list[str] = []
        journal.close_call(closed(call), lambda: written.append(call.id))  # none was opened meanwhile
        await until(lambda: written)
        assert not is_locked(first.path)
        journal.open(another := opened(), nothing, never)
        await journal.stop()
        assert records(tmp_path) == [call, closed(call), another]

    in_loop(work)


def test_a_file_whose_write_failed_with_its_last_close_is_let_go_once(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        faults: list[object] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        journal.open(call := opened(), nothing, never)
        await asyncio.sleep(0)
        disk.write_error = errno.EIO
        written: list[str] = []
        journal.close_call(closed(call), lambda: written.append(call.id))
        loop.call_soon(lambda: setattr(disk, "write_error", None))
        await until(lambda: written)
        await journal.stop()
        assert faults == []
        assert records(tmp_path) == [call, closed(call)]

    in_loop(work)


def test_stopping_on_a_dead_disk_ends_and_says_how_many_closes_are_lost(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, segment_bytes=SMALL)
        journal.open(call := opened(), nothing, never)
        await asyncio.sleep(0)
        disk.write_error = disk.create_error = errno.EIO
        journal.close_call(closed(call), never)
        async with asyncio.timeout(5):
            await journal.stop()
        assert "1 closes could not be written" in caplog.text

    in_loop(work)


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(segments.os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:100], offset))

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop)
        journal.open(call := opened(), nothing, never)
        journal.close_call(closed(call), nothing)
        await journal.stop()
        assert records(tmp_path) == [call, closed(call)]

    in_loop(work)


# Syncing


def test_what_is_written_is_synced_within_the_interval_in_one_sync_for_all(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, sync_seconds=0.02)
        for _ in range(10):
            journal.open(opened(), nothing, never)
            await asyncio.sleep(0)
        assert disk.syncs == 0
        await until(lambda: disk.syncs)
        await asyncio.sleep(0.1)
        assert disk.syncs == 1
        await journal.stop()

    in_loop(work)


def test_in_strict_mode_a_record_counts_as_written_only_when_it_is_synced(tmp_path: Path, disk: Disk) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, strict=True)
        seen: list[int] = []
        for _ in range(5):
            journal.open(call := opened(), lambda: seen.append(disk.syncs), never)
            await until(lambda: seen)
            journal.close_call(closed(call), lambda: seen.append(disk.syncs))
            await until(lambda: len(seen) == 2)
            assert seen == [disk.syncs - 1, disk.syncs]
            seen.clear()
        await journal.stop()

    in_loop(work)


def test_in_strict_mode_a_failing_sync_fails_opens_and_moves_closes_to_another_file(
    tmp_path: Path, disk: Disk
) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(tmp_path, loop=loop, strict=True, segment_bytes=SMALL)
        early = opened()
        outcomes: list[str] = []
        journal.open(early, lambda: outcomes.append("early open"), never)
        await until(lambda: outcomes)
        disk.sync_error = errno.EIO
        journal.open(opened(), never, lambda: outcomes.append("late failed"))
        journal.close_call(closed(early), lambda: outcomes.append("early closed"))
        await until(lambda: "late failed" in outcomes)
        disk.sync_error = None
        await until(lambda: "early closed" in outcomes)
        await journal.stop()
        assert len(list(tmp_path.glob("*.journal"))) <= 3
        assert records(tmp_path)[-1] == closed(early)

    in_loop(work)


def test_the_reserve_holds_the_longest_close() -> None:
    assert CLOSE_ROOM >= 8 + 1500
