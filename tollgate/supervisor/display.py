"""What the person who runs `tollgate up` sees: a live list of what is waited for, or plain lines.

Every line also goes to logs/up.log.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text


class Display(Protocol):
    """How progress is shown."""

    def step(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Show that something is waited for, as long as the block runs, and how long it took."""

    def say(self, line: str) -> None:
        """Show one line."""

    def summary(self, text: str) -> None:
        """Show what a person needs now that all is up; the lines must be shown uncut and unchanged."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainDisplay:
    """Lines, for output that is no terminal."""

    def __init__(self) -> None:
        self._log: Path | None = None

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

    def say(self, line: str) -> None:
        """Print the line."""
        self.write_log(line)
        print(line, flush=True)

    def summary(self, text: str) -> None:
        """Print the text."""
        print(f"\n{text}", flush=True)

    def write_log(self, line: str) -> None:
        """Append to the log, if there is one; a full disk must not stop what only reports."""
        if self._log is not None:
            now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
            with contextlib.suppress(OSError), self._log.open("a") as out:
                out.write(f"{now} {line}\n")

    def close(self) -> None:
        """Nothing to do."""


class LiveDisplay(PlainDisplay):
    """A list with spinners on a terminal; once all is up, lines."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._rows: dict[str, Spinner | Text] = {}
        self._live = Live(console=self._console, refresh_per_second=10)
        self._live.start()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a spinner until it is done."""
        began = time.monotonic()
        self.write_log(f"{name} ...")
        self._rows[name] = Spinner("dots", text=name)
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

    def say(self, line: str) -> None:
        """Print the line above the list."""
        self.write_log(line)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def summary(self, text: str) -> None:
        """End the list and print the text."""
        self.close()
        self._console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """End the live part; lines may follow."""
        self._live.stop()

    def _show(self) -> None:
        self._live.update(Group(*self._rows.values()))


def display_for_stdout() -> PlainDisplay:
    """A live display on a terminal, lines elsewhere."""
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()
