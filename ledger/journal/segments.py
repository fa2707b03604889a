"""Journal files: their names, and how one comes to be.

A file is `<host>-<pid>-<start of its writer, microseconds since the epoch>-<number>.journal`. Whoever
writes it holds `flock(LOCK_EX)` on it, which the kernel frees when the process dies, however it dies. A
file that can be locked will never be written again.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".journal"
UNBORN_SUFFIX = ".new"  # a file that is not locked and sized yet: no journal, whatever is in it


class SegmentName(NamedTuple):
    host: str
    pid: int
    started_us: int
    number: int

    def __str__(self) -> str:
        return f"{self.host}-{self.pid}-{self.started_us}-{self.number:06d}{SUFFIX}"

    @property
    def process(self) -> tuple[str, int, int]:
        """Which process wrote it: one run of one process on one host."""
        return self.host, self.pid, self.started_us

    @classmethod
    def parse(cls, name: str) -> "SegmentName":
        """Raises ValueError when this is not the name of a journal file."""
        if not name.endswith(SUFFIX):
            raise ValueError(f"{name} does not end in {SUFFIX}")
        host, pid, started, number = name.removesuffix(SUFFIX).rsplit("-", 3)
        return cls(host, int(pid), int(started), int(number))


class Segment:
    """One file being written. Offsets and sizes are bytes."""

    __slots__ = ("broken", "calls", "dirty", "end", "fd", "path", "queue", "size", "syncing", "written")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.written = 0  # handed to the kernel
        self.end = 0  # the same with what is queued
        self.queue: list[bytes] = []
        self.calls = 0  # opened here and not closed: each has room for its close reserved
        self.dirty = False
        self.syncing = False
        self.broken = False  # a write or a sync failed: nothing more goes here

    def write(self) -> None:
        """Hand the queue to the kernel. Raises OSError, after which nobody knows what of it is in the
        file."""
        data = b"".join(self.queue)
        self.queue.clear()
        at = self.written
        self.dirty = True
        sent = os.pwrite(self.fd, data, at)
        while sent < len(data):
            sent += os.pwrite(self.fd, data[sent:], at + sent)
        self.written = at + sent

    def release(self) -> None:
        """Let go of the lock: from here on the file belongs to the drainer."""
        os.close(self.fd)
        self.fd = -1

    def discard(self) -> None:
        """Remove a file that nothing was written to."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.release()


def create(folder: Path, name: SegmentName, size: int) -> Segment:
    """A new locked file with `size` bytes that are really there. Raises OSError (ENOSPC and the like)."""
    path = folder / str(name)
    unborn = folder / f".{name}{UNBORN_SUFFIX}"
    fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, size)
        # Renamed only when locked: a journal that can be seen and locked has lost its writer.
        unborn.rename(path)
        _sync_folder(folder)
    except BaseException:
        for leftover in (unborn, path):
            with contextlib.suppress(OSError):
                leftover.unlink()
        os.close(fd)
        raise
    return Segment(path, fd, size)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
