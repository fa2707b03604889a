"""What is read from files that are being written, were left by a dead process, or are damaged."""

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledger.ids import new_id
from ledger.journal.frames import frame
from ledger.journal.reader import Damage, Frame, JournalFile
from ledger.journal.records import decode, encode_close, encode_open
from ledger.journal.segments import SegmentName
from tests.ledger.calls import closed, opened, pieces

SIZE = 32 << 10
CALLS = [opened() for _ in range(5)]
FRAMES = [
    frame(payload) for call in CALLS for payload in (encode_open(call), encode_close(closed(call), 2040))
]
RECORDS = [record for call in CALLS for record in (call, closed(call))]


def journal_of(folder: Path, content: bytes, size: int = SIZE) -> Path:
    path = folder / str(SegmentName("host-with-dashes", 42, 1_700_000_000_000_000, 1))
    path.write_bytes(content + bytes(size - len(content)))
    return path


@contextmanager
def owned(path: Path) -> Iterator[int]:
    """The file as its living writer holds it."""
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield fd
    finally:
        os.close(fd)


def read(file: JournalFile) -> list[object]:
    found: list[object] = []
    for piece in file.read():
        assert isinstance(piece, Frame), piece
        found.append(decode(piece.payload))
    return found


def test_names_say_who_wrote_a_file_also_where_the_host_has_dashes_in_its_name() -> None:
    name = SegmentName("a-b-c", 7, 123, 4)
    assert SegmentName.parse(str(name)) == name
    for odd in ["x.journal", "a-1-2-x.journal", ".a-1-2-000003.journal.new", "a-1-2-3"]:
        with pytest.raises(ValueError, match=r"does not end|invalid literal|not enough"):
            SegmentName.parse(odd)


def test_frames_are_read_with_their_offsets_up_to_the_zero_tail(tmp_path: Path) -> None:
    path = journal_of(tmp_path, b"".join(FRAMES))
    file = JournalFile(path)
    found = list(file.read())
    assert [decode(piece.payload) for piece in found if isinstance(piece, Frame)] == RECORDS
    ends = [sum(map(len, FRAMES[: n + 1])) for n in range(len(FRAMES))]
    assert [piece.end for piece in found] == ends
    assert [piece.offset for piece in found] == [0, *ends[:-1]]
    assert file.position == ends[-1]
    file.close()


def test_more_than_one_chunk_is_read_whole(tmp_path: Path) -> None:
    content = b"".join(FRAMES) * 400
    path = journal_of(tmp_path, content, size=len(content) + 5)
    file = JournalFile(path)
    assert len(read(file)) == 4000
    file.close()


def test_while_the_owner_lives_a_half_written_frame_is_waited_for_at_every_byte(tmp_path: Path) -> None:
    last = FRAMES[-1]
    before = b"".join(FRAMES[:-1])
    for cut in range(len(last)):
        path = journal_of(tmp_path, before + last[:cut])
        with owned(path) as fd:
            file = JournalFile(path)
            assert not file.owner_is_gone()
            assert read(file) == RECORDS[:-1]
            assert read(file) == []
            os.pwrite(fd, last[cut:], len(before) + cut)
            assert read(file) == RECORDS[-1:], cut
            file.close()


def test_when_the_owner_is_gone_a_torn_tail_is_dropped_at_every_byte(tmp_path: Path) -> None:
    last = FRAMES[-1]
    for cut in range(len(last)):
        *found, tail = (
            pieces(journal_of(tmp_path, b"".join(FRAMES[:-1]) + last[:cut])) if cut else [*FRAMES[:-1], None]
        )
        assert len(found) == len(FRAMES) - 1
        if cut:
            assert isinstance(tail, Damage)
            assert tail.torn
            assert tail.end == SIZE


def test_a_page_of_the_last_frame_that_never_reached_the_disk_is_a_torn_tail(tmp_path: Path) -> None:
    last = FRAMES[-1]
    for start in range(0, len(last) - 8, 16):
        holed = last[:start] + bytes(8) + last[start + 8 :]
        found = pieces(journal_of(tmp_path, b"".join(FRAMES[:-1]) + holed))
        assert [type(piece) for piece in found] == [Frame] * (len(FRAMES) - 1) + [Damage]


def test_a_hole_or_a_changed_bit_costs_the_frame_that_it_is_in_and_no_other(tmp_path: Path) -> None:
    for number, victim in enumerate(FRAMES[:-1]):
        for at in range(0, len(victim), 7):
            for broken in [
                victim[:at] + bytes([victim[at] ^ 0x10]) + victim[at + 1 :],
                victim[:at] + bytes(len(victim) - at),
            ]:
                content = b"".join([*FRAMES[:number], broken, *FRAMES[number + 1 :]])
                found = pieces(journal_of(tmp_path, content))
                whole = [decode(piece.payload) for piece in found if isinstance(piece, Frame)]
                assert whole == RECORDS[:number] + RECORDS[number + 1 :]
                (damage,) = [piece for piece in found if isinstance(piece, Damage)]
                assert not damage.torn
                assert damage.end - damage.offset == len(victim)


def test_random_bytes_are_never_taken_for_a_record(tmp_path: Path) -> None:
    dice = random.Random(7)
    for _ in range(200):
        found = pieces(journal_of(tmp_path, dice.randbytes(dice.randrange(1, 4000))))
        assert [type(piece) for piece in found] == [Damage]
    for _ in range(200):
        content = bytearray(b"".join(FRAMES))
        for _ in range(dice.randrange(1, 6)):
            start = dice.randrange(len(content))
            content[start : start + dice.randrange(1, 60)] = dice.randbytes(dice.randrange(0, 60))
        whole = [
            decode(p.payload) for p in pieces(journal_of(tmp_path, bytes(content))) if isinstance(p, Frame)
        ]
        assert all(record in RECORDS for record in whole)


def test_an_empty_a_short_and_an_unsized_file_are_read_as_nothing(tmp_path: Path) -> None:
    for size in [0, 1, 7, 8, 9]:
        assert pieces(journal_of(tmp_path, b"", size)) == []


def test_the_owner_is_gone_only_when_its_lock_can_be_had_and_then_nobody_else_can_have_it(
    tmp_path: Path,
) -> None:
    path = journal_of(tmp_path, FRAMES[0])
    file = JournalFile(path)
    with owned(path):
        assert not file.owner_is_gone()
    assert file.owner_is_gone()
    with path.open("rb+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.close()


def test_a_reader_that_stops_midway_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = JournalFile(journal_of(tmp_path, b"".join(FRAMES)))
    for expected in RECORDS:
        for piece in file.read():
            assert isinstance(piece, Frame)
            assert decode(piece.payload) == expected
            break
    assert read(file) == []
    file.close()


def test_ids_differ_between_the_calls_of_these_tests() -> None:
    assert len({call.id for call in CALLS} | {new_id()}) == 6
