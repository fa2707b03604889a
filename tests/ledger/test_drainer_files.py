"""Which journal files the drainer reads, keeps and deletes, and what it does with what it cannot book."""

import asyncio
import fcntl
import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ledger.drainer.books import Books
from ledger.drainer.drain import Drainer
from ledger.drainer.folder import JournalFolder
from ledger.drainer.stopping import Stopping
from ledger.errors import DrainerRunning
from ledger.ids import new_id
from ledger.journal.frames import frame
from ledger.journal.records import CloseRecord, OpenRecord, encode_close, encode_open
from ledger.journal.segments import SegmentName
from ledger.journal.writer import Journal
from tests.databases import rows
from tests.ledger.calls import closed, in_loop, never, nothing, opened, write_calls
from tests.ledger.draining import WORDS, drain, give_price

SIZE = 64 << 10
PIDS = itertools.count(100)


class Host:
    """One journal folder and a drainer in this process."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self.url = database_url
        self.folder = folder
        self.pid = next(PIDS)
        self.start()

    def start(self) -> None:
        self.journals = JournalFolder(self.folder)
        self.books = Books(self.url)
        stopping = Stopping.__new__(Stopping)  # signals belong to the test runner
        self.drainer = Drainer(self.journals, self.books, stopping)

    def restart(self) -> None:
        """As after a kill -9: what it knew is gone, and its files are closed."""
        for file in self.drainer._matcher.files:
            if file.reader is not None:
                file.reader.close()
        self.stop()
        self.start()

    def stop(self) -> None:
        self.books.drop_connection()
        self.journals.close()

    def drain(self) -> None:
        assert self.drainer.drain()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.journal"))

    def outcomes(self, *calls: OpenRecord) -> list[str | None]:
        found = rows(
            self.url, "SELECT id::text, outcome FROM usage WHERE id = ANY(%s::uuid[])", [c.id for c in calls]
        )
        by_id = {row["id"]: row["outcome"] for row in found}
        return [by_id.get(call.id) for call in calls]

    def quarantine(self) -> list[dict[str, Any]]:
        return rows(self.url, "SELECT * FROM quarantine ORDER BY id")


@pytest.fixture(scope="module")
def priced(database: str) -> str:
    give_price(database)
    return database


@pytest.fixture
def host(priced: str, tmp_path: Path) -> Any:
    rows(priced, "DELETE FROM quarantine RETURNING id")
    host = Host(priced, tmp_path)
    yield host
    host.stop()


def segment(host: Host, number: int, content: bytes) -> Path:
    """A file of one process that nobody owns any more."""
    path = host.folder / str(SegmentName("elsewhere", host.pid, 1_700_000_000_000_000, number))
    path.write_bytes(content + bytes(SIZE - len(content)))
    return path


def framed(*records: OpenRecord | CloseRecord) -> bytes:
    return b"".join(
        frame(encode_open(r) if isinstance(r, OpenRecord) else encode_close(r, 2040)) for r in records
    )


# Living and dead owners


def test_calls_of_a_living_process_are_booked_as_they_close_and_its_file_stays(host: Host) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(host.folder, loop=loop)
        first, second = opened(), opened()
        journal.open(first, nothing, never)
        journal.open(second, nothing, never)
        journal.close_call(closed(first), nothing)
        await asyncio.sleep(0)
        host.drain()
        assert host.outcomes(first, second) == ["completed", None]
        assert len(host.files()) == 1
        journal.close_call(closed(second), nothing)
        await asyncio.sleep(0)
        host.drain()
        assert host.outcomes(second) == ["completed"]
        assert len(host.files()) == 1
        await journal.stop()
        host.drain()
        assert host.files() == []

    in_loop(work)
    (row,) = [
        r for r in rows(host.url, "SELECT * FROM journal_files") if not r["name"].startswith("elsewhere")
    ][-1:]
    assert row["finished"]


def test_a_full_segment_of_a_living_process_is_deleted_and_one_with_an_open_call_is_kept(host: Host) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(host.folder, loop=loop, segment_bytes=SIZE, sync_seconds=0.001)
        slow = opened()
        journal.open(slow, nothing, never)
        calls = [opened() for _ in range(500)]
        for call in calls:
            journal.open(call, nothing, never)
            journal.close_call(closed(call), nothing)
            await asyncio.sleep(0)
        assert len(host.files()) > 4
        async with asyncio.timeout(10):
            while len(host.files()) > 3:  # the first, the current, a spare
                await asyncio.sleep(0.01)
                host.drain()
        assert set(host.outcomes(*calls)) == {"completed"}
        assert host.outcomes(slow) == [None]
        journal.close_call(closed(slow), nothing)
        await journal.stop()
        host.drain()
        assert host.outcomes(slow) == ["completed"]
        assert host.files() == []

    in_loop(work)


def test_after_a_restart_opens_are_known_again_and_nothing_is_booked_twice(host: Host) -> None:
    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(host.folder, loop=loop)
        early, late = opened(), opened()
        for call in (early, late):
            journal.open(call, nothing, never)
        journal.close_call(closed(early), nothing)
        await asyncio.sleep(0)
        host.drain()
        before = rows(host.url, "SELECT sum(calls) AS calls FROM usage_days")
        host.restart()
        host.drain()
        assert rows(host.url, "SELECT sum(calls) AS calls FROM usage_days") == before
        journal.close_call(closed(late), nothing)
        await asyncio.sleep(0)
        host.drain()
        assert host.outcomes(early, late) == ["completed", "completed"]
        await journal.stop()

    in_loop(work)


def test_a_call_is_interrupted_only_when_every_file_of_its_process_was_read(host: Host) -> None:
    call, lost = opened(), opened()
    first = segment(host, 1, framed(call, lost))
    second = segment(host, 2, b"")
    with second.open("rb+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        host.drain()
        assert host.outcomes(call, lost) == [None, None]
        assert first.exists()
        os.pwrite(owner.fileno(), framed(closed(call)), 0)
        host.drain()
        assert host.outcomes(call, lost) == ["completed", None]
    host.drain()
    assert host.outcomes(call, lost) == ["completed", "interrupted"]
    assert host.files() == []


def test_a_close_that_moved_to_a_later_file_finds_its_open_also_when_it_is_read_first(host: Host) -> None:
    call = opened()
    with segment(host, 1, b"").open("rb+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        host.drain()
        # Open and close appear between the reading of the first file and that of the second.
        reading = host.drainer._matcher._read

        def read(writer: Any, file: Any, items: Any, limit: int) -> None:
            reading(writer, file, items, limit)
            if file.name.number == 1 and not moved:
                moved.append(call)
                os.pwrite(owner.fileno(), framed(call), 0)
                segment(host, 2, framed(closed(call)))
                host.drainer._matcher.listed(host.journals.journals())

        moved: list[OpenRecord] = []
        host.drainer._matcher._read = read  # type: ignore[method-assign]
        host.drain()
        assert host.outcomes(call) == ["completed"]
    host.drain()
    assert host.quarantine() == []
    assert host.files() == []


def test_a_spare_that_its_writer_took_away_again_is_no_trouble(host: Host) -> None:
    path = segment(host, 1, framed(call := opened()))
    spare = segment(host, 2, b"")
    host.drainer._matcher.listed(host.journals.journals())
    spare.unlink()
    host.drain()
    assert host.outcomes(call) == ["interrupted"]
    assert not path.exists()


def test_a_file_whose_name_was_used_before_is_read_from_its_start(host: Host) -> None:
    first, second, third = opened(), opened(), opened()
    segment(host, 1, framed(first, closed(first)))
    host.drain()
    segment(host, 1, framed(second, closed(second), third))
    host.drain()
    assert host.outcomes(first, second, third) == ["completed", "completed", "interrupted"]


def test_a_drainer_that_dies_between_commit_and_deletion_books_nothing_twice(host: Host) -> None:
    calls = [opened() for _ in range(3)]
    content = framed(calls[0], closed(calls[0]), calls[1], calls[2], closed(calls[2]))
    segment(host, 1, content)
    host.drain()
    totals = "SELECT (SELECT sum(calls) FROM usage_days), (SELECT sum(debits) FROM balances) AS debits"
    before = rows(host.url, totals)
    segment(host, 1, content)
    host.restart()
    host.drain()
    assert rows(host.url, totals) == before
    assert host.files() == []


def test_a_file_stays_until_its_last_records_are_committed_also_those_that_open_no_call_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.drainer.drain.GROUP_CALLS", 3)
    calls = [opened() for _ in range(4)]
    closes = [closed(call) for call in calls]
    unknown = frame(b"O\x07" + b'["from the future"]')
    first = segment(host, 1, framed(*calls, *closes[:3]))
    second = segment(host, 2, framed(closes[3]) + unknown)  # as after a failing write: closes had to move
    assert host.drainer.try_pass()  # what follows the first three calls was read meanwhile
    assert host.outcomes(*calls) == ["completed", "completed", "completed", None]
    assert first.exists()
    assert second.exists()
    host.restart()
    host.drain()
    assert host.outcomes(*calls) == ["completed"] * 4
    (row,) = host.quarantine()
    assert row["record"] == unknown
    assert host.files() == []


def test_files_that_are_no_journals_are_left_alone_and_old_unborn_ones_removed(host: Host) -> None:
    other = host.folder / "notes.txt"
    other.write_text("mine")
    foreign = host.folder / "x.journal"
    foreign.write_text("?")
    unborn = host.folder / ".elsewhere-1-2-000001.journal.new"
    unborn.write_bytes(b"")
    host.drain()
    assert unborn.exists()
    os.utime(unborn, (1, 1))
    host.drain()
    assert not unborn.exists()
    assert other.exists()
    assert foreign.exists()


def test_a_second_drainer_on_the_same_folder_says_so_and_leaves(host: Host) -> None:
    with pytest.raises(DrainerRunning, match=rf"process {os.getpid()}\) already reads"):
        JournalFolder(host.folder)


# What cannot be booked


def test_a_row_that_postgres_refuses_is_quarantined_with_its_records_and_blocks_nobody(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    good = [opened() for _ in range(50)]
    bad = [
        opened(key_id="no uuid"),
        opened(currency="dollars"),
        opened(prompt_bound=1 << 40),
        opened("no-uuid-either"),
        opened(new_id((1 << 47) + 5)),  # a month that no partition can be made for
        opened(model=7),
        opened(organisation_id=None),
        opened(endpoint="chat\tcompletions"),
    ]
    closes = {call.id: closed(call) for call in bad}
    late_bad = [opened() for _ in range(4)]
    closes |= {
        late_bad[0].id: closed(late_bad[0], outcome="nonsense"),
        late_bad[1].id: closed(late_bad[1], prompt_tokens=-5),
        late_bad[2].id: closed(late_bad[2], charge=-1),
        late_bad[3].id: closed(late_bad[3], ended_us="soon"),
    }
    closes |= {call.id: closed(call) for call in good}
    calls = [call for group in zip(good, (bad + late_bad) * 5, strict=False) for call in group]
    calls = list({call.id: call for call in [*calls, *good]}.values())
    write_calls(host.folder, calls, [closes[call.id] for call in calls])
    host.drain()
    assert set(host.outcomes(*good)) == {"completed"}
    found = host.quarantine()
    assert len(found) == len(bad) + len(late_bad)
    for call, row in zip([call for call in calls if call in bad or call in late_bad], found, strict=True):
        assert row["record"] == framed(call, closes[call.id])
        assert row["reason"]
    assert caplog.text.count("quarantined") == len(found)
    assert host.files() == []
    host.drain()
    assert len(host.quarantine()) == len(found)


def test_an_interrupted_call_can_be_quarantined_too(host: Host) -> None:
    write_calls(host.folder, [opened(key_id="no uuid"), good := opened()], [])
    host.drain()
    assert host.outcomes(good) == ["interrupted"]
    assert len(host.quarantine()) == 1
    assert host.files() == []


def test_records_of_an_unknown_version_and_bytes_that_are_none_are_kept_in_quarantine(host: Host) -> None:
    calls = [opened() for _ in range(2)]
    unknown = frame(b"O\x07" + b'["from the future"]')
    hole = bytes(100)
    content = (
        framed(calls[0], closed(calls[0])) + unknown + hole + framed(calls[1], closed(calls[1])) + b"torn"
    )
    segment(host, 1, content)
    host.drain()
    assert host.outcomes(*calls) == ["completed", "completed"]
    first, second = host.quarantine()
    assert first["record"] == unknown
    assert "version" in first["reason"]
    assert second["record"] == hole
    assert second["position"] == first["position"] + len(unknown)
    host.restart()
    host.drain()
    assert len(host.quarantine()) == 2
    assert host.files() == []


def test_a_close_without_its_open_is_quarantined_unless_the_call_is_in_the_books(host: Host) -> None:
    known, unknown = opened(), opened()
    segment(host, 1, framed(known, closed(known)))
    host.drain()
    segment(host, 2, framed(closed(known), closed(unknown)))
    host.drain()
    (row,) = host.quarantine()
    assert row["reason"] == f"a close without its open: call {unknown.id}"
    assert host.outcomes(unknown) == [None]


def test_a_call_that_was_closed_twice_is_booked_once_with_its_first_close(host: Host) -> None:
    call = opened()
    segment(host, 1, framed(call, closed(call), closed(call, charge=1, outcome="timed_out")))
    host.drain()
    assert host.outcomes(call) == ["completed"]
    assert host.quarantine() == []


# Backlogs


def test_a_backlog_of_many_files_and_groups_is_booked_whole(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.drainer.drain.GROUP_CALLS", 37)
    calls = [opened() for _ in range(1000)]
    for start in range(0, 1000, 250):
        part = calls[start : start + 250]
        write_calls(host.folder, part, [closed(call) for call in part[:240]], segment_bytes=SIZE)
    host.drain()
    outcomes = host.outcomes(*calls)
    assert (outcomes.count("completed"), outcomes.count("interrupted")) == (960, 40)
    assert host.files() == []


def test_an_empty_folder_is_drained_at_once_and_a_missing_one_is_made(priced: str, tmp_path: Path) -> None:
    drain(priced, tmp_path / "new")
    assert (tmp_path / "new").is_dir()


def test_what_the_drainer_cannot_start_with_is_one_sentence(
    priced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(**variables: str | None) -> str:
        env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "TOLLGATE_JOURNAL")}
        env |= {k: v for k, v in variables.items() if v is not None}
        done = subprocess.run(
            [*WORDS, "--once"],
            env=env, capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    file = tmp_path / "file"
    file.write_text("")
    assert "DATABASE_URL is not set" in refusal(TOLLGATE_JOURNAL=str(tmp_path))
    assert "TOLLGATE_JOURNAL is not set" in refusal(DATABASE_URL=priced)
    assert "cannot be used" in refusal(DATABASE_URL=priced, TOLLGATE_JOURNAL=str(file / "x"))
    secret = "postgresql://tollgate:geheim@127.0.0.1:1/tollgate"
    said = refusal(DATABASE_URL=secret, TOLLGATE_JOURNAL=str(tmp_path))
    assert "does not take the connection" in said
    assert "geheim" not in said
    for bare in ("%zz", "@", "/", " ", ":1@"):  # what stands in the password as it is
        url = f"postgresql://tollgate:1{bare}geheim@127.0.0.1:1/tollgate"
        said = refusal(DATABASE_URL=url, TOLLGATE_JOURNAL=str(tmp_path))
        assert "DATABASE_URL is malformed" in said
        assert "geheim" not in said
