"""Reads all journals and matches opens with closes.

A call's records are matched within the process that wrote them, usually within one file. An open whose
process is gone and wrote no close becomes an interrupted call. What is matched is given out in the order of
the file that closed it, so that "written up to here" is one number per file.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ledger.journal.frames import frame
from ledger.journal.reader import Damage, Frame, JournalFile
from ledger.journal.records import (
    MAX_CLOSE,
    CloseRecord,
    OpenRecord,
    UnreadableRecord,
    decode,
    encode_close,
    encode_open,
)
from ledger.journal.segments import SegmentName

log = logging.getLogger(__name__)

Process: TypeAlias = tuple[str, int, int]


@dataclass(slots=True, eq=False)
class TrackedFile:
    """A journal file and how far it is done. Positions are bytes."""

    name: SegmentName
    text: str
    committed: int  # what Postgres has of it: closes before this are in the books
    reader: JournalFile | None = None
    read_to: int = 0
    unresolved: int = 0  # opens of this file whose call is not in the books
    in_hand: int = 0  # items of this file that were given out and are not committed
    read_out: bool = False  # its writer is gone and nothing is left to read
    failing: bool = False


@dataclass(slots=True)
class Item:
    """Something for Postgres: a call, or bytes that cannot become one.

    `opened` without `closed` is an interrupted call, `closed` without `opened` has lost its open.
    """

    file: TrackedFile  # whose position it moves
    offset: int  # of the record in it
    end: int  # the position once this is committed
    opened: OpenRecord | None = None
    closed: CloseRecord | None = None
    opened_in: TrackedFile | None = None
    data: bytes = b""
    refusal: str | None = None  # why it cannot be a call

    def record(self) -> bytes:
        """The frames that it came from: written into a journal file they could be read again."""
        opened = frame(encode_open(self.opened)) if self.opened else b""
        closed = frame(encode_close(self.closed, MAX_CLOSE)) if self.closed else b""
        return opened + closed or self.data


@dataclass(slots=True)
class _Pending:
    record: OpenRecord
    file: TrackedFile
    offset: int


@dataclass(slots=True, eq=False)
class _Writer:
    """One run of one process."""

    files: list[TrackedFile] = field(default_factory=list)
    pending: dict[str, _Pending] = field(default_factory=dict)
    read_out_at: int | None = None  # the number of the listing after which all its known files were read out


class Matcher:
    """All journals of one folder. `positions` tells what Postgres has of the named files."""

    def __init__(
        self, folder: Path, positions: Callable[[list[SegmentName]], dict[SegmentName, int]]
    ) -> None:
        self._folder = folder
        self._positions = positions
        self._writers: dict[Process, _Writer] = {}
        self._known: dict[SegmentName, TrackedFile] = {}
        self._listings = 0

    @property
    def files(self) -> Iterable[TrackedFile]:
        return self._known.values()

    def listed(self, names: list[SegmentName]) -> None:
        """Take in the files that are in the folder now. Raises what `positions` raises, changing nothing."""
        new = [name for name in names if name not in self._known]
        if new:
            positions = self._positions(new)
            for name in new:
                self._track(name, positions.get(name, 0))
        self._listings += 1

    def gather(self, limit: int) -> list[Item]:
        """What can be written now, at most about `limit` items. Each item is given out once."""
        items: list[Item] = []
        self._gather(items, limit)
        for item in items:
            item.file.in_hand += 1
        return items

    def committed(self, items: Iterable[Item]) -> None:
        """These are in the books now."""
        for item in items:
            item.file.committed = max(item.file.committed, item.end)
            item.file.in_hand -= 1
            if item.opened_in is not None:
                item.opened_in.unresolved -= 1

    def finished(self) -> list[TrackedFile]:
        """Files that nobody will write or need again: all that they held is in the books."""
        return [
            file
            for file in self._known.values()
            if file.read_out and not file.unresolved and not file.in_hand
        ]

    def forget(self, file: TrackedFile) -> None:
        del self._known[file.name]
        writer = self._writers[file.name.process]
        writer.files.remove(file)
        if not writer.files:
            del self._writers[file.name.process]

    def _gather(self, items: list[Item], limit: int) -> None:
        for writer in list(self._writers.values()):
            for file in writer.files:
                self._read(writer, file, items, limit)
                if len(items) >= limit:
                    return
            self._interrupted(writer, items)

    def _track(self, name: SegmentName, committed: int) -> None:
        file = TrackedFile(name, str(name), committed)
        self._known[name] = file
        writer = self._writers.setdefault(name.process, _Writer())
        writer.files.append(file)
        writer.files.sort(key=lambda tracked: tracked.name.number)
        writer.read_out_at = None

    def _read(self, writer: _Writer, file: TrackedFile, items: list[Item], limit: int) -> None:
        if file.read_out:
            return
        try:
            if (reader := file.reader) is None:
                reader = file.reader = JournalFile(self._folder / file.text)
            gone = reader.owner_is_gone()  # asked first: what is there afterwards is all that will ever be
            for piece in reader.read():
                file.read_to = reader.position
                if isinstance(piece, Damage):
                    self._damage(file, piece, items)
                else:
                    self._frame(writer, file, piece, items)
                if len(items) >= limit:
                    return
        except FileNotFoundError:
            gone, reader = True, None  # its writer never used it and took it away
        except OSError as error:
            if not file.failing:
                log.error("journal file %s cannot be read: %s", file.text, error.strerror)
            file.failing = True
            return
        file.failing = False
        if gone:
            file.read_out = True
            file.reader = None
            if reader is not None:
                reader.close()
            if all(other.read_out for other in writer.files):
                writer.read_out_at = self._listings

    def _frame(self, writer: _Writer, file: TrackedFile, piece: Frame, items: list[Item]) -> None:
        try:
            record = decode(piece.payload)
        except UnreadableRecord as error:
            if piece.end > file.committed:
                items.append(
                    Item(file, piece.offset, piece.end, data=frame(piece.payload), refusal=str(error))
                )
            return
        if isinstance(record, OpenRecord):
            earlier = writer.pending.get(record.id)
            if earlier is not None:
                earlier.file.unresolved -= 1
            writer.pending[record.id] = _Pending(record, file, piece.offset)
            file.unresolved += 1
            return
        pending = writer.pending.pop(record.id, None)
        if pending is None and piece.end > file.committed:
            pending = self._look_back(writer, file, record, items)
        if piece.end <= file.committed:
            if pending is not None:
                pending.file.unresolved -= 1
            return
        if pending is None:
            items.append(Item(file, piece.offset, piece.end, closed=record))
        else:
            items.append(Item(file, piece.offset, piece.end, pending.record, record, opened_in=pending.file))

    def _look_back(
        self, writer: _Writer, file: TrackedFile, record: CloseRecord, items: list[Item]
    ) -> _Pending | None:
        """A close that had to move to a later file (its own failed) can be seen before its open: the open is
        older, so reading the earlier files on finds it."""
        for other in writer.files:
            if other.name.number < file.name.number:
                self._read(writer, other, items, limit=1 << 62)
        return writer.pending.pop(record.id, None)

    def _damage(self, file: TrackedFile, piece: Damage, items: list[Item]) -> None:
        if piece.torn:
            log.info("%s: a torn tail at byte %d was dropped", file.text, piece.offset)
        elif piece.end > file.committed:
            reason = f"{piece.end - piece.offset} bytes are no record"
            items.append(Item(file, piece.offset, piece.end, data=piece.data, refusal=reason))

    def _interrupted(self, writer: _Writer, items: list[Item]) -> None:
        """Opens that will never see a close: their process is gone and all its files were read.

        A listing made after the last lock was had must not have shown another file.
        """
        if not writer.pending or writer.read_out_at is None or self._listings <= writer.read_out_at:
            return
        for pending in writer.pending.values():
            file = pending.file
            items.append(Item(file, pending.offset, file.read_to, pending.record, opened_in=file))
        writer.pending.clear()
