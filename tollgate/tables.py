"""Tables for people: whole when they go into a file or a pipe, as wide as the screen otherwise."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 200  # columns, where no screen sets a limit


def table(*columns: str) -> Table:
    """An empty table; a column whose name begins with '>' is aligned to the right."""
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
