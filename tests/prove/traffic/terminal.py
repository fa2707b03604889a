"""A terminal of its own for a `tollgate up`, so that Ctrl-C is the real one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import subprocess
import termios
import threading
from pathlib import Path

CTRL_C = b"\x03"


class Terminal:
    """One pseudo-terminal; what is written on it goes to a file."""

    def __init__(self, output: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        self._output = output
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def run(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a process in the terminal's foreground, as a shell would."""
        return subprocess.Popen(
            words,
            env=environment | {"TERM": "xterm"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 (one system call)
        )

    def press(self, keys: bytes) -> None:
        """Type something; the line discipline turns CTRL_C into SIGINT for the foreground group."""
        os.write(self._ours, keys)

    def close(self) -> None:
        os.close(self._theirs)
        self._reader.join(5.0)
        os.close(self._ours)

    def _read(self) -> None:
        with self._output.open("ab") as output, contextlib.suppress(OSError):
            while data := os.read(self._ours, 1 << 16):  # EIO once nobody holds the other side
                output.write(data)
                output.flush()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
