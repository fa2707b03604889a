"""Reads a journal file, while it is being written and after its writer died.

While the writer lives, what does not add up to a frame is a frame that is still being written: the reader
stops before it and comes back. Once the lock can be had nobody will ever write again, and what does not add
up is damage: a torn tail is dropped, and a hole (a page that never reached the disk before the host died)
is stepped over if whole frames follow it.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ledger.journal.frames import HEADER, HEADER_BYTES, MAX_PAYLOAD
from ledger.journal.records import CLOSE, OPEN
from ledger.journal.segments import SegmentName

CHUNK_BYTES = 1 << 18  # above the longest frame

# Where a frame may begin: eight bytes of header lie before a kind, a version and the bracket of an array.
_CANDIDATE = re.compile(b"[%c%c][\x01-\xff]\\[" % (OPEN, CLOSE))

_unpack = HEADER.unpack_from


class Frame(NamedTuple):
    """A record that is whole. Offsets are bytes in the file; `end` is where the next begins."""

    offset: int
    end: int
    payload: bytes


class Damage(NamedTuple):
    """Bytes that are no frame, in a file whose writer is gone. `torn` when nothing whole follows them."""

    offset: int
    end: int
    data: bytes
    torn: bool


class JournalFile:
    """One file, read from its start. `position` is the end of the last frame given out."""

    __slots__ = ("_fd", "_owner_gone", "name", "path", "position", "size")

    def __init__(self, path: Path) -> None:
        """Raises ValueError for a name that is no journal's, OSError when it cannot be opened."""
        self.path = path
        self.name = SegmentName.parse(path.name)
        self.position = 0
        self._owner_gone = False
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def owner_is_gone(self) -> bool:
        """True once the lock could be had; it is kept from then on. What was read before may not be all."""
        if not self._owner_gone:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._owner_gone = True
        return True

    def read(self) -> Iterator[Frame | Damage]:
        """Frames from `position` on, as far as they are whole now."""
        while True:
            chunk = os.pread(self._fd, CHUNK_BYTES, self.position)
            found = 0
            for item in self._frames(chunk, self.position):
                self.position = item.end
                found += 1
                yield item
            if found:
                continue
            damage = self._damage(chunk) if self._owner_gone else None
            if damage is None:
                return
            self.position = damage.end
            yield damage

    @staticmethod
    def _frames(chunk: bytes, base: int) -> Iterator[Frame]:
        at, size = 0, len(chunk)
        while at + HEADER_BYTES <= size:
            length, checksum = _unpack(chunk, at)
            start = at + HEADER_BYTES
            end = start + length
            if not 0 < length <= MAX_PAYLOAD or end > size:
                return
            payload = chunk[start:end]
            if crc32(payload) != checksum:
                return
            yield Frame(base + at, base + end, payload)
            at = end

    def _damage(self, chunk: bytes) -> Damage | None:
        """What lies at `position`, where no whole frame begins; None when it is only zeros to the end."""
        start = self.position
        rest = chunk
        while len(rest) < self.size - start and (
            more := os.pread(self._fd, CHUNK_BYTES * 16, start + len(rest))
        ):
            rest += more
        written = len(rest.rstrip(b"\x00"))
        if not written:
            return None
        for candidate in _CANDIDATE.finditer(rest, HEADER_BYTES):
            at = candidate.start() - HEADER_BYTES
            length, checksum = _unpack(rest, at)
            payload = rest[at + HEADER_BYTES : at + HEADER_BYTES + length]
            if 0 < length <= MAX_PAYLOAD and len(payload) == length and crc32(payload) == checksum:
                return Damage(start, start + at, rest[: min(at, MAX_PAYLOAD)], torn=False)
        return Damage(start, start + len(rest), rest[: min(written, MAX_PAYLOAD)], torn=True)

    def close(self) -> None:
        """Let go of the file, and of its lock when it was had."""
        os.close(self._fd)
