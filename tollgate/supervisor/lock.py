"""One `tollgate up` for each home: a file lock that the kernel frees when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tollgate.errors import HomeInUse, TollgateError


@contextlib.contextmanager
def holding(home: Path) -> Iterator[None]:
    """Hold a home (made when missing) for the block; HomeInUse when another process has it."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise  # which the command line says of every file
        raise TollgateError(
            f"Tollgate cannot keep its state in {home} ({error.strerror}); "
            "set TOLLGATE_HOME to a folder of yours."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeInUse(home, os.read(descriptor, 32).decode(errors="replace").strip()) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
