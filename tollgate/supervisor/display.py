"""What the person who runs `tollgate up` sees: a live list of what is waited for, or plain lines.

Every line also goes to logs/up.log. Output that is gone (a broken pipe, a hung-up terminal, a full disk)
stops nothing: what runs goes on, and stops in order.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

PROGRESS_SECONDS = 3.0  # between two lines of progress where nothing can be overwritten


class PlainDisplay:
    """Lines, for output that is no terminal."""

    def __init__(self) -> None:
        self._log: Path | None = None
        self._progress_at = 0.0

    def log_to(self, path: Path) -> None:
        """Write every line into a file as well."""
        self._log = path

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Say when it begins and when it is done."""
        began = time.monotonic()
        self.say(f"{name} ...")
        yield
        self.say(f"{name}: ready after {time.monotonic() - began:.1f} s")

    def progress(self, words: str) -> None:
        """Print the words, unless some were just printed."""
        self.write_log(words)
        if time.monotonic() - self._progress_at > PROGRESS_SECONDS:
            self._progress_at = time.monotonic()
            with _output_may_be_gone():
                print(f"  {words}", flush=True)

    def say(self, line: str) -> None:
        """Print the line."""
        self.write_log(line)
        with _output_may_be_gone():
            print(line, flush=True)

    def summary(self, text: str) -> None:
        """Print the text."""
        with _output_may_be_gone():
            print(f"\n{text}", flush=True)

    def write_log(self, line: str) -> None:
        """Append to the log, if there is one; a full disk must not stop what only reports."""
        if self._log is not None:
            now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
            with contextlib.suppress(OSError), self._log.open("a") as out:
                out.write(f"{now} {line}\n")

    def close(self) -> None:
        """Leave the terminal as it was."""


class LiveDisplay(PlainDisplay):
    """A list with spinners on a terminal; once all is up, lines."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._rows: dict[str, Spinner | Text] = {}
        self._spinner: Spinner | None = None
        self._spinning = ""
        self._live = Live(console=self._console, refresh_per_second=10)
        self._live.start()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a spinner until it is done."""
        began = time.monotonic()
        self.write_log(f"{name} ...")
        self._rows[name] = self._spinner = Spinner("dots", text=name)
        self._spinning = name
        self._show()
        try:
            yield
        except BaseException:
            self._rows[name] = Text(f"✗ {name}", style="red")
            self._show()
            raise
        took = time.monotonic() - began
        self.write_log(f"{name}: ready after {took:.1f} s")
        self._rows[name] = Text.assemble(("✓ ", "green"), name, (f"  {took:.1f} s", "dim"))
        self._show()

    def progress(self, words: str) -> None:
        """Show the words beside the step that began last."""
        self.write_log(words)
        if self._spinner is not None:
            self._spinner.update(text=f"{self._spinning}: {words}")

    def say(self, line: str) -> None:
        """Print the line above the list."""
        self.write_log(line)
        with _output_may_be_gone():
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def summary(self, text: str) -> None:
        """End the list and print the text."""
        self.close()
        with _output_may_be_gone():
            self._console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """End the live part; lines may follow."""
        with _output_may_be_gone():
            self._live.stop()

    def _show(self) -> None:
        with _output_may_be_gone():
            self._live.update(Group(*self._rows.values()))


@contextlib.contextmanager
def _output_may_be_gone() -> Iterator[None]:
    """Printing only: rich turns a broken pipe into SystemExit, all else is an OSError."""
    try:
        yield
    except (OSError, SystemExit) as error:
        if isinstance(error, OSError) and error.errno not in {errno.EPIPE, errno.EIO}:
            return  # a full disk may have room again
        # What is still buffered would be tried again at the exit, and change its code.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def display_for_stdout() -> PlainDisplay:
    """A live display on a terminal, lines elsewhere."""
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()
