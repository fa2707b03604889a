"""Prices: exact, with dates, fixed at admission, never changed."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import asyncpg
import psycopg
import pytest

from ledger.errors import BadAmount, BadCurrency, PriceExists
from ledger.prices import Price, PriceBook, load_prices, set_price
from tests.databases import rows

T = TypeVar("T")

HOUR_US = 3_600_000_000
PRICE = Price("p", "m", "USD", prompt=1_500_000, cached_prompt=500_000, completion=2_000_000)


def on(database: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    async def main() -> T:
        connection = await asyncpg.connect(database)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def test_a_charge_is_the_sum_of_tokens_times_price() -> None:
    assert PRICE.charge(10, 4, 3) == 6 * 1_500_000 + 4 * 500_000 + 3 * 2_000_000
    assert PRICE.charge(0, 0, 0) == 0


@pytest.mark.parametrize(
    ("prompt", "cached", "completion", "as_if"),
    [(-5, 0, 3, (0, 0, 3)), (5, -1, 3, (5, 0, 3)), (5, 9, 3, (5, 5, 3)), (5, 2, -3, (5, 2, 0)),
     (-1, -1, -1, (0, 0, 0))],
)  # fmt: skip
def test_absurd_counts_never_credit(
    prompt: int, cached: int, completion: int, as_if: tuple[int, int, int]
) -> None:
    assert PRICE.charge(prompt, cached, completion) == PRICE.charge(*as_if) >= 0


def test_no_call_within_its_bounds_costs_more_than_its_bound() -> None:
    dear_cache = Price("p", "m", "USD", prompt=1, cached_prompt=7, completion=3)
    for price in (PRICE, dear_cache):
        bound = price.bound(100, 2, 50)
        assert bound >= max(price.charge(100, cached, 2 * 50) for cached in range(101))
    assert PRICE.bound(100, 2, 50) == PRICE.charge(100, 0, 100)


def test_the_price_of_a_call_is_the_latest_that_holds_when_it_is_admitted() -> None:
    book = PriceBook(
        Price(str(hour), "m", "USD", hour, hour, hour, effective_us=hour * HOUR_US) for hour in (3, 1, 2)
    )
    assert book.at("m", HOUR_US - 1) is None
    for moment, hour in ((HOUR_US, "1"), (2 * HOUR_US - 1, "1"), (2 * HOUR_US, "2"), (99 * HOUR_US, "3")):
        price = book.at("m", moment)
        assert price is not None
        assert price.id == hour
    assert book.at("other", 99 * HOUR_US) is None
    assert len(book) == 3


def test_a_price_comes_back_from_the_database_as_it_was_set_and_says_so_on_the_channel(database: str) -> None:
    from_when = datetime(2027, 1, 1, 0, 0, 0, 7, tzinfo=UTC)

    async def work(connection: asyncpg.Connection) -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        listener = await asyncpg.connect(database)
        await listener.add_listener("tollgate", lambda *word: told.put_nowait(word[3]))
        made = await set_price(
            connection,
            model="set",
            prompt="0.0000000375",
            completion="0.000000000001",
            effective_from=from_when,
        )
        assert await asyncio.wait_for(told.get(), 5) == "prices"
        await listener.close()
        assert (made.prompt, made.cached_prompt, made.completion, made.currency) == (37_500, 37_500, 1, "USD")
        moment = 1_798_761_600_000_007
        assert made.effective_us == moment
        book = await load_prices(connection)
        assert book.at("set", moment) == made
        assert book.at("set", moment - 1) is None

    on(database, work)


def test_a_price_that_would_round_or_credit_is_refused_and_leaves_no_row(database: str) -> None:
    async def refused(connection: asyncpg.Connection) -> None:
        for prompt in ("0.0000000000001", "-0.1", "NaN", "Infinity", "1000000", "much"):
            with pytest.raises(BadAmount):
                await set_price(connection, model="bad", prompt=prompt, completion="0")
        with pytest.raises(BadCurrency):
            await set_price(connection, model="bad", prompt="0", completion="0", currency="dollars")

    on(database, refused)
    assert rows(database, "SELECT 1 FROM prices WHERE model = 'bad'") == []


@pytest.mark.parametrize("amount", ["'NaN'", "'Infinity'", "-1", "0.0000000000001", "1000000"])
def test_the_database_itself_refuses_such_a_price(database: str, amount: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        rows(
            database,
            "INSERT INTO prices (model, currency, prompt, cached_prompt, completion, effective_from) "
            f"VALUES ('by hand', 'USD', {amount}, 0, 0, now()) RETURNING id",
        )


def test_a_price_is_never_changed_only_followed_by_another(database: str) -> None:
    since = datetime.now(UTC)

    async def work(connection: asyncpg.Connection) -> None:
        first = await set_price(
            connection, model="kept", prompt="0.1", completion="0.1", effective_from=since
        )
        with pytest.raises(PriceExists, match="set one from another time"):
            await set_price(connection, model="kept", prompt="0.2", completion="0.1", effective_from=since)
        later = since + timedelta(hours=1)
        second = await set_price(
            connection, model="kept", prompt="0.2", completion="0.1", effective_from=later
        )
        book = await load_prices(connection)
        assert book.at("kept", second.effective_us - 1) == first
        assert book.at("kept", second.effective_us) == second
        for change in ("UPDATE prices SET prompt = 0", "DELETE FROM prices", "TRUNCATE prices"):
            with pytest.raises(asyncpg.RestrictViolationError):
                await connection.execute(change)

    on(database, work)
