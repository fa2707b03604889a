"""`ledger verify`: clean books are said to be clean, and no falsification passes unseen."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, cast

import asyncpg
import psycopg
import pytest

from ledger.ids import new_id
from ledger.verify import Report, verify
from tests.databases import fresh_database
from tests.ledger.books import Books, copied, open_books
from tollgate.servers import Servers


@pytest.fixture(scope="module")
def right_books(servers: Servers, _template: None) -> Iterator[Books]:
    """Books with one call of each kind, all of them right."""
    with fresh_database(servers.database_url) as url:
        made = open_books(url)
        made.call("completed")
        made.call("completed", cache="hit")
        for outcome in (
            "caller_left",
            "engine_failed",
            "engine_refused",
            "shutdown",
            "interrupted",
            "timed_out",
        ):
            made.call(outcome)
        yield made


@pytest.fixture
def books(right_books: Books) -> Iterator[Books]:
    """A copy that the test may spoil."""
    with copied(right_books) as copy:
        yield copy


def proof(books: Books) -> Report:
    async def main() -> Report:
        connection = await asyncpg.connect(books.url)
        try:
            return await verify(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def found(books: Books) -> set[str]:
    return {finding.check.name for finding in proof(books).findings if finding.faults}


def command(books: Books, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tollgate", "ledger", *words],
        env=os.environ | {"DATABASE_URL": books.url},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_right_books_are_clean_and_the_counts_say_which_calls_were_charged(books: Books) -> None:
    report = proof(books)
    assert report.clean, [finding for finding in report.findings if finding.faults]
    counts = report.counts
    assert (counts.calls, counts.with_one_charge, counts.with_none, counts.with_more) == (8, 2, 6, 0)
    assert counts.by_outcome["completed"] == 2
    assert counts.charged_by_other_outcome == {"caller_left": 1}
    each = 5 * Decimal("0.0000015") + 2 * Decimal("0.0000005") + 5 * Decimal("0.000002")
    assert counts.charged == {"USD": 2 * each}
    assert (counts.interrupted, counts.written_off) == (1, {"USD": Decimal(1)})


FALSIFICATIONS = {
    "a charge raised": ("UPDATE usage SET charge = charge * 2 WHERE charge > 0", "charge"),
    "a charge lowered by the smallest unit": (
        "UPDATE usage SET charge = charge - 0.000000000001 WHERE outcome = 'completed' AND charge > 0",
        "charge",
    ),
    "a charge forgotten": ("UPDATE usage SET charge = 0 WHERE outcome = 'completed'", "charge"),
    "a token more": ("UPDATE usage SET completion_tokens = completion_tokens + 1", "charge"),
    "a cache hit charged": ("UPDATE usage SET charge = 0.5 WHERE cache = 'hit'", "charge"),
    "a failed call charged": ("UPDATE usage SET charge = 0.5 WHERE outcome = 'engine_failed'", "charge"),
    "an interrupted call charged": ("UPDATE usage SET charge = 0.5 WHERE outcome = 'interrupted'", "charge"),
    "a price changed afterwards": ("UPDATE prices SET prompt = prompt + 0.000000000001", "charge"),
    "a price lost": ("DELETE FROM prices", "charge"),
    "a price of another model": ("UPDATE usage SET model = 'n' WHERE outcome = 'caller_left'", "price"),
    "a price from after the call": ("UPDATE prices SET effective_from = now() + INTERVAL '1 day'", "price"),
    "a price long replaced": (
        "INSERT INTO prices (model, currency, prompt, cached_prompt, completion, effective_from, created_at) "
        "VALUES ('m', 'USD', 1, 1, 1, now() - INTERVAL '3 hours', now() - INTERVAL '1 day')",
        "price",
    ),
    "a charge above its hold": ("UPDATE usage SET hold = 0 WHERE outcome = 'caller_left'", "hold"),
    "a transfer lost": (
        "DELETE FROM transfers WHERE call_id = (SELECT id FROM usage WHERE outcome = 'caller_left')",
        "unbooked",
    ),
    "a transfer of another amount": (
        "UPDATE transfers SET amount = amount + 0.000000000001 WHERE kind = 'charge'",
        "transfer",
    ),
    "a transfer without its call": ("DELETE FROM usage WHERE outcome = 'completed'", "transfer"),
    "a transfer from another app": (
        "INSERT INTO accounts (kind, app_id, currency) VALUES ('wallet', gen_random_uuid(), 'USD'); "
        "UPDATE transfers SET debit_account = (SELECT id FROM accounts WHERE kind = 'wallet' "
        "AND app_id NOT IN (SELECT id FROM apps)) WHERE kind = 'charge'",
        "transfer",
    ),
    "a transfer into another pocket": (
        "UPDATE transfers SET credit_account = (SELECT id FROM accounts WHERE kind = 'cash') "
        "WHERE kind = 'charge'",
        "transfer",
    ),
    "a transfer of no account": ("UPDATE transfers SET credit_account = gen_random_uuid()", "account"),
    "a transfer of another currency": ("UPDATE transfers SET currency = 'EUR'", "account"),
    "a charge written off": ("UPDATE transfers SET kind = 'write_off'", "write_off"),
    "a write-off lost": ("DELETE FROM transfers WHERE kind = 'write_off'", "write_off"),
    "a balance edited": ("UPDATE balances SET credits = credits + 1 WHERE credits > 0", "balance"),
    "both sides of a balance edited": (
        "UPDATE balances SET credits = credits + 1, debits = debits + 1",
        "balance",
    ),
    "a balance lost": ("DELETE FROM balances WHERE credits > 0", "balance"),
    "money from nowhere": (
        "INSERT INTO balances SELECT id, 0, 7 FROM accounts WHERE kind = 'cash'",
        "sum",
    ),
    "a rollup edited": ("UPDATE usage_days SET charge = charge + 0.000000000001", "rollup"),
    "a rollup's calls edited": ("UPDATE usage_days SET calls = calls - 1", "rollup"),
    "a rollup's day shifted": ("UPDATE usage_days SET day = day + 1", "rollup"),
    "a rollup lost": ("DELETE FROM usage_days", "rollup"),
    "a call dated into another month": (
        "UPDATE usage SET admitted_at = admitted_at - INTERVAL '31 days'",
        "month",
    ),
    "a call lost": ("DELETE FROM usage WHERE outcome = 'engine_failed'", "rollup"),
    "an attempt without its call": (
        "INSERT INTO attempts VALUES "
        "(%(id)s, 1, 'retry', NULL, 'engine_failed', 502, 0, 0, 0, now(), 1, NULL)",
        "attempt",
    ),
    "a record that Postgres refused": (
        "INSERT INTO quarantine (host, journal, position, record, reason) VALUES ('h', 'j', 0, 'x', 'odd')",
        "quarantine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FALSIFICATIONS)
def test_no_falsification_passes_unseen(books: Books, what: str) -> None:
    statements, check = FALSIFICATIONS[what]
    books.falsify(statements, **({"id": new_id()} if "%(id)s" in statements else {}))
    assert check in found(books)


def test_two_charges_for_one_call_are_refused_by_the_database_and_seen_without_its_help(books: Books) -> None:
    (charge,) = books.run(
        "SELECT transfers.* FROM transfers JOIN usage ON usage.id = call_id WHERE outcome = 'completed'"
    )
    again = (
        "INSERT INTO transfers (id, debit_account, credit_account, amount, currency, kind, call_id) VALUES "
        "(%(id)s, %(debit_account)s, %(credit_account)s, %(amount)s, 'USD', 'charge', %(call_id)s)"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        books.run(again, **charge)
    charge["id"] = new_id()
    with pytest.raises(psycopg.errors.CheckViolation):
        books.run(again, **charge)
    books.run("ALTER TABLE transfers DROP CONSTRAINT ck_transfers_one_per_call")
    books.run(again, **charge)
    report = proof(books)
    assert report.counts.with_more == 1
    assert "twice" in {finding.check.name for finding in report.findings if finding.faults}


@pytest.mark.parametrize("table", ["usage", "attempts", "transfers"])
def test_rows_of_the_books_are_never_changed_deleted_or_emptied(books: Books, table: str) -> None:
    key = "call_id" if table == "attempts" else "id"
    if table == "attempts":
        books.run(
            "INSERT INTO attempts VALUES "
            "(%(id)s, 1, 'probe', NULL, 'completed', 200, 0, 0, 0, now(), 1, NULL)",
            id=new_id(),
        )
    (month,) = books.run(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits "
        "WHERE inhparent = %(table)s::regclass ORDER BY 1 LIMIT 1",
        table=table,
    )
    for name in (table, str(month["name"])):
        for change in (f"UPDATE {name} SET {key} = {key}", f"DELETE FROM {name}", f"TRUNCATE {name}"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="never changed or deleted"):
                books.run(change)


def test_the_command_lists_what_differs_and_fails(books: Books) -> None:
    right = command(books, "verify")
    assert (right.returncode, right.stdout.splitlines()[-1]) == (0, "The books are right."), (
        right.stdout + right.stderr
    )
    books.falsify("UPDATE usage_days SET calls = calls + 1")
    wrong = command(books, "verify")
    assert wrong.returncode == 1
    assert "1 FAULTS" in wrong.stdout
    assert "rolled up 9 calls" in wrong.stdout
    document = json.loads(command(books, "verify", "--json").stdout)
    assert document["clean"] is False
    assert document["counts"]["with_one_charge"] == 2
    assert [check["name"] for check in document["checks"] if check["faults"]] == ["rollup"]


def test_a_drainer_at_work_does_not_disturb_the_proof(books: Books) -> None:
    """All questions are asked of one snapshot: what is half-way into the books is not seen by halves."""

    async def main() -> Report:
        reader = await asyncpg.connect(books.url)
        writer = await asyncpg.connect(books.url)
        seen: list[str] = []

        class Disturbed:
            def transaction(self, **how: Any) -> object:
                return reader.transaction(**how)

            async def fetchval(self, query: str) -> object:
                return await reader.fetchval(query)

            async def fetch(self, query: str) -> object:
                rows = await reader.fetch(query)
                if not seen:
                    seen.append(query)
                    await writer.execute("UPDATE balances SET credits = credits + 1, debits = debits + 1")
                return rows

        try:
            return await verify(cast("asyncpg.Connection", Disturbed()))
        finally:
            await reader.close()
            await writer.close()

    assert asyncio.run(main()).clean
    assert "balance" in found(books)
