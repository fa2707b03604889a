"""`tollgate ledger verify`: do the books prove themselves? All questions of `ledger/checks.py`, one snapshot.

The four counts (docs/billing.md) say of all calls how many have exactly one charge, none, two or more, and
how many charges belong to a call that did not end as completed, by outcome.
"""

from dataclasses import dataclass
from decimal import Decimal

import asyncpg

from ledger.checks import CHECKS, Check

EXAMPLES = 20  # faults that are listed of each kind; all are counted


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: `faults` in all, the first of them as `examples`."""

    check: Check
    faults: int
    examples: list[str]


@dataclass(frozen=True, slots=True)
class Counts:
    """Of all calls in the books; amounts in their currency, by its code."""

    calls: int
    with_one_charge: int
    with_none: int
    with_more: int
    by_outcome: dict[str, int]  # calls
    charged_by_other_outcome: dict[str, int]  # charges of calls that are not `completed`
    interrupted: int
    written_off: dict[str, Decimal]
    quarantined: int
    charged: dict[str, Decimal]
    journals_unread: int  # files that the drainer has not read to their end, or whose writer lives


@dataclass(frozen=True, slots=True)
class Report:
    """`findings`: of every check, also those that found nothing."""

    counts: Counts
    findings: list[Finding]

    @property
    def clean(self) -> bool:
        return not any(finding.faults for finding in self.findings)


async def verify(connection: asyncpg.Connection) -> Report:
    """Reads the whole ledger in one snapshot, so that a drainer at work does not disturb; changes nothing."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        counts = await _count(connection)
        return Report(counts, [await _ask(connection, check) for check in CHECKS])


async def _ask(connection: asyncpg.Connection, check: Check) -> Finding:
    rows = await connection.fetch(
        f"SELECT fault, count(*) OVER () AS faults FROM ({check.query}) AS found (fault) LIMIT {EXAMPLES}"  # noqa: S608
    )
    return Finding(check, rows[0]["faults"] if rows else 0, [row["fault"] for row in rows])


async def _count(connection: asyncpg.Connection) -> Counts:
    by_charges = await connection.fetch(
        """
        SELECT usage.outcome, least(coalesce(booked.charges, 0), 2) AS charges, count(*) AS calls
        FROM usage
        LEFT JOIN (
            SELECT call_id, count(*) AS charges FROM transfers WHERE kind = 'charge' GROUP BY call_id
        ) AS booked ON booked.call_id = usage.id
        GROUP BY 1, 2 ORDER BY 1, 2
        """
    )
    with_charges = [0, 0, 0]
    by_outcome: dict[str, int] = {}
    by_other_outcome: dict[str, int] = {}
    for outcome, charges, calls in by_charges:
        with_charges[charges] += calls
        by_outcome[outcome] = by_outcome.get(outcome, 0) + calls
        if charges and outcome != "completed":
            by_other_outcome[outcome] = by_other_outcome.get(outcome, 0) + calls
    sums = await connection.fetch(
        """
        SELECT kind, currency, trim_scale(sum(amount)) AS amount FROM transfers
        WHERE kind IN ('charge', 'write_off') GROUP BY 1, 2 ORDER BY 1, 2
        """
    )
    return Counts(
        calls=sum(with_charges),
        with_one_charge=with_charges[1],
        with_none=with_charges[0],
        with_more=with_charges[2],
        by_outcome=by_outcome,
        charged_by_other_outcome=by_other_outcome,
        interrupted=by_outcome.get("interrupted", 0),
        written_off={row["currency"]: row["amount"] for row in sums if row["kind"] == "write_off"},
        quarantined=await connection.fetchval("SELECT count(*) FROM quarantine"),
        charged={row["currency"]: row["amount"] for row in sums if row["kind"] == "charge"},
        journals_unread=await connection.fetchval("SELECT count(*) FROM journal_files WHERE NOT finished"),
    )
