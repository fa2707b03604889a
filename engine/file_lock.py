"""One process at a time makes a thing in a folder; the others wait and find it made."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2

Progress = Callable[[str], None]  # called with a few words whenever something else is being done


@contextmanager
def alone(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file beside `target`; the kernel gives it back when its holder dies, however that is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    progress(f"waiting: another process is making {target}")
                waiting = True
                time.sleep(POLL_SECONDS)
        yield
