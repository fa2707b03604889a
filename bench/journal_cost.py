"""CPU of the journal per call: open and close together, written in groups as the event loop makes them.

    python bench/journal_cost.py [--calls N] [--group N]

Prints microseconds of process CPU per call (user + system), and of wall clock.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop

from ledger.ids import new_id
from ledger.journal.records import Attempt, CloseRecord, OpenRecord
from ledger.journal.writer import Journal


def records(count: int) -> list[tuple[OpenRecord, CloseRecord]]:
    organisation, app, key, version, replica, price = (new_id() for _ in range(6))
    now = time.time_ns() // 1000
    made = []
    for _ in range(count):
        call = new_id()
        attempt = Attempt("call", replica, "completed", 200, 100, 0, 64, now, now + 900_000, None)
        made.append(
            (
                OpenRecord(
                    call, organisation, app, key, "user-1", "smollm2", version, replica, "chat/completions",
                    True, price, "USD", 1_000_000_000, 120, now, "miss",
                ),
                CloseRecord(
                    call, "completed", 200, 100, 0, 64, 0, "engine", 246_000_000, now + 900_000, now + 50_000,
                    replica, version, [attempt], [], None,
                ),
            )
        )  # fmt: skip
    return made


async def measure(folder: Path, calls: int, group: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    journal = Journal(folder, loop=loop)
    made = records(calls)
    written = 0

    def then() -> None:
        nonlocal written
        written += 1

    def failed() -> None:
        raise RuntimeError("the journal could not write")

    cpu, wall = time.process_time(), time.perf_counter()
    for start in range(0, calls, group):
        batch = made[start : start + group]
        for opened, _ in batch:
            journal.open(opened, then, failed)
        await asyncio.sleep(0)
        for _, closed in batch:
            journal.close_call(closed, then)
        await asyncio.sleep(0)
    await journal.stop()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if written != 2 * calls:
        raise RuntimeError(f"{written} of {2 * calls} records were written")
    return cpu / calls * 1e6, wall / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=30_000)
    parser.add_argument(
        "--group", type=int, default=0, help="calls per turn of the loop (default: 1, 10, 32)"
    )
    options = parser.parse_args()
    for group in [options.group] if options.group else [1, 10, 32]:
        with tempfile.TemporaryDirectory() as folder:
            cpu, wall = uvloop.run(measure(Path(folder), options.calls, group))
        print(f"{group:3} calls per turn: {cpu:5.2f} us CPU, {wall:5.2f} us wall per call (open and close)")


if __name__ == "__main__":
    main()
