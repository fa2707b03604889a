"""Money does not drift: a million small charges are exactly their sum, wherever it can be read."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal

import asyncpg
import pytest

from ledger.money import format_amount, parse_amount
from ledger.topups import top_up
from ledger.verify import verify
from tests.databases import fresh_database
from tests.ledger.books import Books, open_books
from tollgate.servers import Servers

MILLION = 1_000_000
EXACTLY = Decimal("1.50")


@pytest.fixture(scope="module")
def million(servers: Servers, _template: None) -> Iterator[Books]:
    """A million calls of one prompt token at 0.0000015, over the end of a month, booked."""
    with fresh_database(servers.database_url) as url:
        books = open_books(url)
        books.run("SELECT ensure_month('2026-09-01'), ensure_month('2026-10-01')")
        books.calls(MILLION, "2026-09-30T23:59:59.500Z")
        yield books


READ_AT = {
    "usage": "SELECT sum(charge) AS total FROM usage",
    "transfers": "SELECT sum(amount) AS total FROM transfers",
    "all debits": "SELECT sum(debits) AS total FROM balances",
    "all credits": "SELECT sum(credits) AS total FROM balances",
    "the rollup": "SELECT sum(charge) AS total FROM usage_days",
    "the view of apps": "SELECT spend AS total FROM billing.spend_by_app",
    "the view of days": "SELECT sum(spend) AS total FROM billing.spend_by_app_day",
}


@pytest.mark.parametrize("where", READ_AT)
def test_a_million_charges_of_a_small_price_are_exactly_their_sum(million: Books, where: str) -> None:
    (row,) = million.run(READ_AT[where])
    assert row["total"] == EXACTLY


def test_the_month_of_a_call_is_read_from_its_id(million: Books) -> None:
    rows = million.run(
        "SELECT tableoid::regclass::text AS month, count(*), "
        "min(admitted_at) < '2026-10-01T00:00Z' AS september FROM usage GROUP BY 1 ORDER BY 1"
    )
    assert rows == [
        {"month": "usage_2026_09", "count": MILLION // 2, "september": True},
        {"month": "usage_2026_10", "count": MILLION // 2, "september": False},
    ]
    assert million.run("SELECT day::text, calls, spend FROM billing.spend_by_app_day ORDER BY 1") == [
        {"day": "2026-09-30", "calls": MILLION // 2, "spend": EXACTLY / 2},
        {"day": "2026-10-01", "calls": MILLION // 2, "spend": EXACTLY / 2},
    ]


@pytest.mark.parametrize(("by", "lines"), [("app", ["acme/bot"]), ("model", ["m"]), ("day", None)])
def test_the_command_says_the_same_digits(million: Books, by: str, lines: list[str] | None) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tollgate", "ledger", "spend", "--by", by, "--json"],
        env=os.environ | {"DATABASE_URL": million.url},
        capture_output=True,
        check=True,
        timeout=60,
    )
    found = json.loads(said.stdout)
    assert [line[by] for line in found] == (lines or ["2026-09-30", "2026-10-01"])
    assert [line["spend"] for line in found] == ["1.5"] * len(found) if lines else ["0.75", "0.75"]
    assert {line["currency"] for line in found} == {"USD"}


def test_a_million_calls_prove_themselves(million: Books) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(million.url)
        try:
            report = await verify(connection)
        finally:
            await connection.close()
        assert report.clean, [finding for finding in report.findings if finding.faults]
        assert report.counts.with_one_charge == MILLION
        assert report.counts.charged == {"USD": EXACTLY}

    asyncio.run(main())


def test_ten_steps_of_a_tenth_use_up_a_budget_of_one_to_the_last_digit() -> None:
    left, steps = parse_amount("1.00"), 0
    while left >= parse_amount("0.10"):
        left -= parse_amount("0.10")
        steps += 1
    assert (steps, left, format_amount(left)) == (10, 0, "0")


@pytest.mark.usefixtures("_template")
def test_ten_top_ups_of_a_tenth_are_exactly_one(servers: Servers) -> None:
    async def main(url: str, app_id: str) -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            steps = [
                await top_up(connection, app_id=app_id, amount="0.10", currency="USD") for _ in range(10)
            ]
            again = await top_up(
                connection, app_id=app_id, amount="0.10", currency="USD", transfer_id=steps[-1].transfer_id
            )
            assert (await verify(connection)).clean
        finally:
            await connection.close()
        return [format_amount(step.balance) for step in (*steps, again)]

    with fresh_database(servers.database_url) as url:
        balances = asyncio.run(main(url, open_books(url).app))
    assert balances == ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1", "1"]
