"""What commands print: tables of figures for people, and lists that are the same in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 200  # columns, where no screen sets a limit


def table(*columns: str) -> Table:
    """An empty table, as wide as the screen, and whole in a file or a pipe.

    A column whose name begins with '>' is aligned to the right.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return made


def show(made: Table, empty: str) -> None:
    """Prints it, or the sentence `empty` when it has no rows."""
    if not made.row_count:
        print(empty)
        return
    Console(width=None if sys.stdout.isatty() else WIDE).print(made)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A list: headings in capitals, then one line per row; no line is cut."""
    lines = [[heading.upper() for heading in headings], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def moment(time: datetime | None) -> str:
    """A time in UTC to the second, '-' for none."""
    return "-" if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def state(revoked_at: datetime | None, expires_at: datetime | None = None) -> str:
    """active, expired or revoked."""
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at is not None and expires_at <= datetime.now(UTC) else "active"
