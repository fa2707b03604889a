"""What the books say to the limits server: what was spent so far, and what became of lost calls."""

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import date
from typing import NamedTuple, Protocol

import asyncpg

from ledger.ids import time_ms
from ledger.journal.segments import SegmentName
from ledger.money import from_numeric

ANSWER_SECONDS = 2.0
UNSEEN_SECONDS = 600  # a call that is in no journal is given up only then: a drainer may be behind
SAME_START_SECONDS = 30
_SPENT = """
    SELECT coalesce(sum(charge), 0) FROM usage_days
    WHERE app_id = $1 AND ($2::text IS NULL OR end_user = $2) AND currency = $3
      AND ($4::date IS NULL OR day >= $4)
"""
_CHARGES = """
    SELECT id::text, charge, prompt_tokens + completion_tokens AS tokens FROM usage
    WHERE id = ANY($1::text[]::uuid[])
"""
_JOURNALS = "SELECT name, finished FROM journal_files"


class Charge(NamedTuple):
    """Of one call: amount in 1e-12, and the tokens it used."""

    amount: int
    tokens: int


class SpentSource(Protocol):
    """Where the limiter asks. Both raise OSError, or the source's own error, when it cannot be known now."""

    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        """Spent by the app, or by one end user of it, since a day (UTC; None: ever), in 1e-12."""

    async def charges_of(self, owners: Mapping[str, str]) -> dict[str, Charge]:
        """What ended calls were charged, of these: call id -> process (host-pid-start). Others are left out.

        A call that is in no journal, when all of its process's are in the books, was charged nothing.
        """


class LedgerSpent:
    """The ledger: its day rollup, usage rows and journal files. It is asked rarely."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        """As SpentSource; also raises asyncpg's errors."""
        async with self._connected() as connection:
            spent = await connection.fetchval(_SPENT, app_id, end_user, currency, since)
        return from_numeric(spent)

    async def charges_of(self, owners: Mapping[str, str]) -> dict[str, Charge]:
        """As SpentSource; also raises asyncpg's errors."""
        async with self._connected() as connection:
            files = await connection.fetch(_JOURNALS)  # first: what is finished then, is in `usage` after
            rows = await connection.fetch(_CHARGES, list(owners))
        charges = {row["id"]: Charge(from_numeric(row["charge"]), row["tokens"]) for row in rows}
        young_ms = time.time_ns() // 1_000_000 - UNSEEN_SECONDS * 1000
        unseen = [call_id for call_id in owners if call_id not in charges and time_ms(call_id) < young_ms]
        if unseen:
            finished = _read_out((SegmentName.parse(row["name"]), row["finished"]) for row in files)
            for call_id in unseen:
                if _is_read_out(owners[call_id], finished):
                    charges[call_id] = Charge(0, 0)
        return charges

    @contextlib.asynccontextmanager
    async def _connected(self) -> "AsyncIterator[asyncpg.Connection]":
        connection = await asyncpg.connect(
            self._database_url, timeout=ANSWER_SECONDS, command_timeout=ANSWER_SECONDS
        )
        try:
            yield connection
        finally:
            await connection.close(timeout=ANSWER_SECONDS)


def _read_out(files: Iterable[tuple[SegmentName, bool]]) -> dict[tuple[str, int, int], bool]:
    """By process (host, pid, start of its journal): whether all that is known of its journals was read."""
    processes: dict[tuple[str, int, int], bool] = {}
    for name, finished in files:
        processes[name.process] = processes.get(name.process, True) and finished
    return processes


def _is_read_out(owner: str, processes: Mapping[tuple[str, int, int], bool]) -> bool:
    """`owner` began within the same seconds as its journal: that tells it from another of the same pid."""
    try:
        host, pid, started_us = owner.rsplit("-", 2)
        began = int(started_us)
        return any(
            read_out
            for (of_host, of_pid, start), read_out in processes.items()
            if (of_host, of_pid) == (host, int(pid)) and abs(start - began) < SAME_START_SECONDS * 1_000_000
        )
    except ValueError:
        return False
