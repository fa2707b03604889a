"""Rows per second that the drainer moves from journal files into Postgres, real server included.

    python bench/drainer_rate.py [--rows N] [--apps N] [--users N]

Starts its own PostgreSQL; every row has one attempt, one transfer, and moves day rollup and balances.
Prints wall clock and CPU per row of the drainer's process.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psutil
import psycopg

from bench.journal_cost import records
from ledger.drainer.books import Books
from ledger.drainer.drain import Drainer
from ledger.drainer.folder import JournalFolder
from ledger.drainer.stopping import Stopping
from ledger.ids import new_id
from ledger.journal.writer import Journal
from tests.databases import fresh_database, make_template
from tollgate.servers import running_servers


async def write(folder: Path, rows: int, apps: int, users: int) -> None:
    journal = Journal(folder, loop=asyncio.get_running_loop())
    app_ids = [new_id() for _ in range(apps)]

    def then() -> None:
        pass

    for number, (opened, closed) in enumerate(records(rows)):
        call = opened._replace(app_id=app_ids[number % apps], end_user=f"user-{number % users}")
        journal.open(call, then, then)
        journal.close_call(closed, then)
        if number % 20 == 0:
            await asyncio.sleep(0)
    await journal.stop()


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process and its living children have used."""
    leader = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in [leader, *leader.children(recursive=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--apps", type=int, default=100)
    parser.add_argument("--users", type=int, default=1000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_servers(Path(scratch) / "servers", durable=True) as servers,
    ):
        make_template(servers.database_url)
        with fresh_database(servers.database_url) as url:
            journals = Path(scratch) / "journal"
            asyncio.run(write(journals, options.rows, options.apps, options.users))
            drainer = Drainer(JournalFolder(journals), Books(url), Stopping(60))
            postgres = cpu_of(servers.pids["postgres"])
            cpu, wall = time.process_time(), time.perf_counter()
            if not drainer.drain():
                raise RuntimeError("Postgres was away")
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            postgres = cpu_of(servers.pids["postgres"]) - postgres
            with psycopg.connect(url) as connection:
                counted = connection.execute("SELECT count(*), sum(charge) FROM usage").fetchone()
            if counted is None or counted[0] != options.rows:
                raise RuntimeError(f"{counted} instead of {options.rows} rows")
    print(
        f"{options.rows / wall:,.0f} rows/s; CPU per row: drainer {cpu / options.rows * 1e6:.1f} us, "
        f"Postgres {postgres / options.rows * 1e6:.1f} us"
    )


if __name__ == "__main__":
    main()
