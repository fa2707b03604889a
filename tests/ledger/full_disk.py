"""Fills a disk of its own under a journal: python -m tests.ledger.full_disk, in a mount namespace of its own.

Prints `taken N`, `refused: REASON`, `closed N` and `records N`.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

from ledger.errors import JournalFull
from ledger.journal.writer import Journal
from tests.ledger.calls import closed, never, nothing, opened, records

DISK_BYTES = 1 << 20
SEGMENT_BYTES = 256 << 10


async def main(folder: Path) -> None:
    journal = Journal(folder, loop=asyncio.get_running_loop(), segment_bytes=SEGMENT_BYTES)
    taken = []
    while True:
        call = opened()
        try:
            journal.open(call, nothing, never)
        except JournalFull as refused:
            print("refused:", refused)
            break
        taken.append(call)
        await asyncio.sleep(0)
    print("taken", len(taken))
    (folder / "stuffing").write_bytes(b"x" * _free(folder))
    written = []
    for call in taken:
        journal.close_call(closed(call, error_code="e" * 64), lambda id=call.id: written.append(id))
    await asyncio.sleep(0)
    print("closed", len(written))
    await journal.stop()
    print("records", len(records(folder)))


def _free(folder: Path) -> int:
    words = subprocess.run(
        ["df", "--output=avail", "-B1", folder], capture_output=True, text=True, check=True
    )
    return int(words.stdout.split()[-1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", place], check=True)
        asyncio.run(main(Path(place)))
        subprocess.run(["umount", place], check=True)
