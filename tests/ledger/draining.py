"""Runs the real drainer, and asks the books whether they are right."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from ledger.verify import verify
from tests.databases import rows
from tests.ledger.calls import PRICE
from tests.waiting import until

WORDS = [sys.executable, "-m", "ledger.drainer"]


def environment(database_url: str, folder: Path) -> dict[str, str]:
    return os.environ | {"DATABASE_URL": database_url, "TOLLGATE_JOURNAL": str(folder)}


def drain(database_url: str, folder: Path) -> str:
    """One drainer process until all is written; its log."""
    done = subprocess.run(
        [*WORDS, "--once"],
        env=environment(database_url, folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@dataclass
class DrainerProcess:
    """A drainer that runs until it is told or killed."""

    database_url: str
    folder: Path
    log: Path
    words: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            env = environment(self.database_url, self.folder)
            self.process = subprocess.Popen([*WORDS, *self.words], env=env, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self, within: float = 10) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def says(self, words: str, within: float = 20) -> None:
        until(lambda: words in self.log.read_text(), f"the drainer says: {words}", within)


@contextlib.contextmanager
def drainer(database_url: str, folder: Path, log: Path, *words: str) -> Iterator[DrainerProcess]:
    running = DrainerProcess(database_url, folder, log, words)
    running.start()
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def give_price(database_url: str) -> None:
    """The price that the calls of these tests name."""
    rows(
        database_url,
        "INSERT INTO prices VALUES (%s, 'smollm2', 'USD', 0.000001, 0.0000005, 0.000002, '2020-01-01',"
        " '2020-01-01') ON CONFLICT DO NOTHING RETURNING id",
        PRICE,
    )


def faults(database_url: str) -> list[str]:
    """What `ledger verify` finds wrong in the books."""

    async def ask() -> list[str]:
        connection = await asyncpg.connect(database_url)
        try:
            report = await verify(connection)
        finally:
            await connection.close()
        return [
            f"{finding.check.name}: {example}" for finding in report.findings for example in finding.examples
        ]

    return asyncio.run(ask())
