"""Rows as aligned columns, the same on a terminal and in a pipe."""

from collections.abc import Sequence
from datetime import UTC, datetime


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Headings in capitals, then one line per row; no line is cut."""
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
