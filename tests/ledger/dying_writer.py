"""Writes calls until it is killed: python -m tests.ledger.dying_writer FOLDER [--calls-per-second N].

Prints `o <id>` when an open, `c <id>` when a close, `b <id>` when both were said to be written: what a lane
would have acted on.
"""

import argparse
import asyncio
import random
import sys
from pathlib import Path

from ledger.journal.writer import Journal
from tests.ledger.calls import closed, never, opened


async def main(folder: Path, rate: float) -> None:
    journal = Journal(folder, loop=asyncio.get_running_loop(), segment_bytes=64 << 10, sync_seconds=0.005)
    say = sys.stdout.write
    running = []
    while True:
        for _ in range(count := random.randrange(1, 6)):
            call = opened()
            if random.random() < 0.2:
                journal.both(call, closed(call), lambda id=call.id: say(f"b {id}\n"))
            else:
                journal.open(call, lambda id=call.id: say(f"o {id}\n"), never)
                running.append(call)
        await asyncio.sleep(0)
        while len(running) > random.randrange(12):
            call = running.pop(random.randrange(len(running)))
            journal.close_call(closed(call), lambda id=call.id: say(f"c {id}\n"))
        await asyncio.sleep(count / rate if rate else 0)
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls-per-second", type=float, default=0, help="0: as many as it can")
    options = parser.parse_args()
    asyncio.run(main(options.folder, options.calls_per_second))
