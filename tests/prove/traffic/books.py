"""What callers know of their calls, held against the books: the four counts of the billing rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ledger.journal.segments import SegmentName
from tests import databases
from tests.prove.report import Report
from tests.prove.traffic.caller import Told

# Outcomes for which nothing is ever charged.
FREE = {"engine_failed", "engine_refused", "timed_out", "shutdown", "interrupted"}
EXAMPLES = 5

Row = dict[str, Any]


@dataclass(slots=True)
class Books:
    """An app's rows and the charges and write-offs of its calls, by call id; prices by id."""

    rows: dict[str, Row]
    charges: dict[str, list[Row]]
    write_offs: dict[str, list[Row]]
    prices: dict[str, Row]

    def by_tag(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row["end_user"] or "", []).append(row)
        return found


def read(database_url: str, app_id: str) -> Books:
    """All of them in plain queries, not by the product's own reports."""
    rows = databases.rows(database_url, "SELECT * FROM usage WHERE app_id = %s", app_id)
    moved = databases.rows(
        database_url,
        "SELECT t.* FROM transfers t WHERE t.call_id IN (SELECT id FROM usage WHERE app_id = %s)",
        app_id,
    )
    prices = databases.rows(database_url, "SELECT * FROM prices")
    books = Books(
        {str(row["id"]): row for row in rows}, {}, {}, {str(price["id"]): price for price in prices}
    )
    for transfer in moved:
        kinds = {"charge": books.charges, "write_off": books.write_offs}
        kinds[transfer["kind"]].setdefault(str(transfer["call_id"]), []).append(transfer)
    return books


@dataclass(slots=True)
class Found:
    """Faults by the claim they break, and the counts."""

    faults: dict[str, list[str]] = field(default_factory=dict)
    whole_charged: int = 0
    whole_from_cache: int = 0
    twice: int = 0
    explained: Counter[str] = field(default_factory=Counter)  # charges without a whole reply, by outcome
    interrupted: int = 0
    written_off: Decimal = Decimal(0)

    def fault(self, claim: str, what: str) -> None:
        self.faults.setdefault(claim, []).append(what)


WHOLE_ONCE = "each reply received whole has exactly one charge (from the cache: one row that costs nothing)"
EXACT = "each of these charges is the price times the tokens that the reply itself named"
NEVER_TWICE = "no call has two rows or two charges"
EXPLAINED = (
    "every charge without a whole reply is explained: the caller left, or a process was killed at its end"
)
ERRORS_FREE = "no refused, failed or never connected call has a charge"
BEGUN_ONCE = "every answer that began has a row, also those that broke off"
ONLY_OURS = "no row without a call of ours"
CLAIMS = (WHOLE_ONCE, EXACT, NEVER_TWICE, EXPLAINED, ERRORS_FREE, BEGUN_ONCE, ONLY_OURS)


def match(calls: Iterable[Told], books: Books, killed: Collection[int] = ()) -> Found:
    """Hold each call against its row and its charge. killed: pids of API processes that were killed."""
    found = Found()
    by_tag = books.by_tag()
    for told in calls:
        rows = by_tag.pop(told.ask.tag, [])
        charges = [charge for row in rows for charge in books.charges.get(str(row["id"]), [])]
        if len(rows) > 1 or len(charges) > 1:
            found.twice += 1
            found.fault(NEVER_TWICE, f"{told.ask.tag}: {len(rows)} rows, {len(charges)} charges")
        if rows and told.id is not None and str(rows[0]["id"]) != told.id:
            found.fault(ONLY_OURS, f"{told.ask.tag}: the reply said {told.id}, the row {rows[0]['id']}")
        _match_one(told, rows, charges, books, killed, found)
    for tag, rows in by_tag.items():
        found.fault(ONLY_OURS, f"{len(rows)} rows for {tag!r}")
    for id, row in books.rows.items():
        if row["outcome"] == "interrupted":
            found.interrupted += 1
            found.written_off += sum((t["amount"] for t in books.write_offs.get(id, [])), Decimal(0))
    return found


def _match_one(
    told: Told, rows: list[Row], charges: list[Row], books: Books, killed: Collection[int], found: Found
) -> None:
    what = f"{told.ask.tag} ({told.ending}, {told.status}, {told.code}): "
    row = rows[0] if rows else None
    if told.ending == "whole":
        if told.from_cache:
            found.whole_from_cache += 1
            if row is None or row["cache"] != "hit" or charges or row["outcome"] != "completed":
                found.fault(WHOLE_ONCE, what + _said(row))
            return
        if row is None or row["outcome"] != "completed" or len(charges) != 1:
            found.fault(WHOLE_ONCE, what + _said(row))
            return
        found.whole_charged += 1
        if charges[0]["amount"] != row["charge"] or row["charge"] != _due(told, row, books):
            found.fault(EXACT, f"{what}{row['charge']} for {told.usage}")
        return
    if row is None:
        if told.ending in ("error event", "broken off", "cut"):
            found.fault(BEGUN_ONCE, what + "no row")
        return
    if not charges:
        return
    if told.ending in ("refused", "error event", "not connected"):
        found.fault(ERRORS_FREE, what + _said(row))
    elif row["outcome"] == "caller_left":
        found.explained["caller_left"] += 1
    elif row["outcome"] == "completed" and told.ending in ("left", "hung"):
        found.explained["completed before the caller's leaving was seen"] += 1
    elif row["outcome"] == "completed" and SegmentName.parse(row["journal"]).pid in killed:
        found.explained["completed, delivery unknown (its process was killed)"] += 1
    else:
        found.fault(EXPLAINED, what + _said(row))


def _due(told: Told, row: Row, books: Books) -> Decimal:
    """The price of the tokens that the reply named; of the row's own for a stream that was not asked."""
    price = books.prices[str(row["price_id"])]
    if told.usage is None:
        prompt, cached, completion = row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]
    else:
        details = told.usage.get("prompt_tokens_details") or {}
        prompt, completion = told.usage["prompt_tokens"], told.usage["completion_tokens"]
        cached = details.get("cached_tokens") or 0
    due: Decimal = (
        (prompt - cached) * price["prompt"]
        + cached * price["cached_prompt"]
        + completion * price["completion"]
    )
    return due


def _said(row: Row | None) -> str:
    return "no row" if row is None else f"{row['outcome']}, cache {row['cache']}, charged {row['charge']}"


def tell(report: Report, found: Found) -> None:
    """The claims and the four counts."""
    seen = {
        WHOLE_ONCE: f"{found.whole_charged} charged, {found.whole_from_cache} from the cache",
        EXPLAINED: _counted(found.explained) or "there is none",
    }
    for claim in CLAIMS:
        faults = found.faults.get(claim, [])
        detail = f"{len(faults)} faults: {'; '.join(faults[:EXAMPLES])}" if faults else seen.get(claim, "")
        report.claim(claim, not faults, detail)
    report.figure("count 1, replies received whole with exactly one charge", found.whole_charged)
    wrong = len(found.faults.get(WHOLE_ONCE, []))
    report.figure("count 2, replies received whole with none or several", wrong)
    report.figure("count 3, calls with two charges or more", found.twice)
    total = sum(found.explained.values())
    report.figure(
        "count 4, charges without a whole reply", f"{total} ({_counted(found.explained) or 'none'})"
    )
    report.figure("interrupted calls", f"{found.interrupted}, written off {found.written_off.normalize():f}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
