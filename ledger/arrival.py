"""Have the calls of a journal folder arrived in the books: for whoever asks right after one."""

import asyncio
import os
import time
from pathlib import Path

import asyncpg

from ledger.journal.reader import Frame, JournalFile
from ledger.journal.records import CLOSE
from ledger.journal.segments import SUFFIX

POLL_SECONDS = 0.02


async def arrived(connection: asyncpg.Connection, folder: Path, *, within: float) -> bool:
    """Wait until the calls that have ended by now in the journals of `folder` are in the books.

    within: seconds. False when they are not by then. A file that cannot be read counts as in the books.
    """
    deadline = time.monotonic() + within
    awaited = {name: folder / name for name in os.listdir(folder) if name.endswith(SUFFIX)}
    ends: dict[str, int] = {}
    while True:
        positions = await _positions(connection, list(awaited))
        for name, path in awaited.items():
            if name not in ends:
                ends[name] = await asyncio.to_thread(_end_of_calls, path, positions.get(name, 0), deadline)
        awaited = {name: path for name, path in awaited.items() if positions.get(name, 0) < ends[name]}
        if not awaited:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)


async def _positions(connection: asyncpg.Connection, names: list[str]) -> dict[str, int]:
    """How far the files are in the books, in bytes; a name has its host in it."""
    rows = await connection.fetch("SELECT name, position FROM journal_files WHERE name = ANY($1)", names)
    return {row["name"]: row["position"] for row in rows}


def _end_of_calls(path: Path, position: int, deadline: float) -> int:
    """Where the last close from `position` on ends; an open alone is no call yet."""
    try:
        journal = JournalFile(path)
    except (OSError, ValueError):
        return 0  # taken away after all of it was booked, or not ours to read
    end = 0
    try:
        journal.position = position
        for piece in journal.read():
            if isinstance(piece, Frame) and piece.payload[0] == CLOSE:
                end = piece.end
            if time.monotonic() >= deadline:
                break
    except OSError:
        return 0
    finally:
        journal.close()
    return end
