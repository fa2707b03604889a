"""The journal folder: one drainer at a time reads it, whoever wrote the files in it."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ledger.errors import DrainerRunning
from ledger.journal.segments import SUFFIX, UNBORN_SUFFIX, SegmentName

LOCK_NAME = ".drainer.lock"
UNBORN_SECONDS = 60.0  # a file that is not born after this long has lost its maker


class JournalFolder:
    """Holds the host's lock from creation to `close`. Raises DrainerRunning, OSError."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise DrainerRunning(
                f"A drainer (process {holder}) already reads {path}: one per host is enough."
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        self._foreign: set[str] = set()

    def journals(self) -> list[SegmentName]:
        """The journal files that are there, by process and then in the order of their making."""
        found = []
        for entry in os.listdir(self.path):
            if entry.endswith(SUFFIX):
                with contextlib.suppress(ValueError):
                    found.append(SegmentName.parse(entry))
            elif entry.endswith(UNBORN_SUFFIX):
                self._remove_unborn(self.path / entry)
        return sorted(found)

    def close(self) -> None:
        os.close(self._lock)

    @staticmethod
    def _remove_unborn(path: Path) -> None:
        # Nothing was ever written to it; its maker died between making and naming it.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNBORN_SECONDS:
                path.unlink()
