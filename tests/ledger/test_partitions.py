"""Months: made when a row needs them, by any number of writers at once, without waiting for readers."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import asyncpg
import pytest

from ledger.ids import new_id
from ledger.partitions import ensure_months, months_there
from tests.databases import fresh_database
from tollgate.servers import Servers

ATTEMPT = "INSERT INTO attempts VALUES ($1, 1, 'probe', NULL, 'completed', 200, 0, 0, 0, now(), $2, NULL)"
TABLES = ("usage", "attempts", "transfers")


@pytest.fixture
def url(servers: Servers, _template: None) -> Iterator[str]:
    with fresh_database(servers.database_url) as made:
        yield made


def test_a_fresh_database_has_this_month_and_the_next_two(url: str) -> None:
    async def main() -> list[date]:
        connection = await asyncpg.connect(url)
        try:
            return await months_there(connection)
        finally:
            await connection.close()

    this = datetime.now(UTC).date().replace(day=1)
    following = [this]
    for _ in range(2):
        last = following[-1]
        following.append(date(last.year + last.month // 12, last.month % 12 + 1, 1))
    assert asyncio.run(main()) == following


def test_ten_writers_at_once_make_a_month_once(url: str) -> None:
    async def main() -> list[bool]:
        connections = await asyncio.gather(*(asyncpg.connect(url) for _ in range(10)))
        try:
            made = await asyncio.gather(*(ensure_months(each, [date(2031, 5, 17)]) for each in connections))
            assert date(2031, 5, 1) in await months_there(connections[0])
            assert not await ensure_months(connections[0], [date(2031, 5, 1), date(2031, 5, 31)])
            return made
        finally:
            await asyncio.gather(*(each.close() for each in connections))

    assert sorted(asyncio.run(main())) == [False] * 9 + [True]


def test_the_first_and_the_last_id_of_a_month_lie_in_it(url: str) -> None:
    def at(year: int, month: int, day: int = 1) -> int:
        return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)

    async def main() -> dict[str, list[int]]:
        connection = await asyncpg.connect(url)
        try:
            await ensure_months(connection, [date(2028, 2, 1), date(2028, 3, 1), date(2028, 1, 1)])
            for ms in (at(2028, 2) - 1, at(2028, 2), at(2028, 2, 29), at(2028, 3) - 1, at(2028, 3)):
                await connection.execute(ATTEMPT, new_id(ms), ms)
            rows = await connection.fetch(
                "SELECT tableoid::regclass::text, array_agg(duration_us) FROM attempts GROUP BY 1"
            )
            return {name: sorted(found) for name, found in rows}
        finally:
            await connection.close()

    assert asyncio.run(main()) == {
        "attempts_2028_01": [at(2028, 2) - 1],
        "attempts_2028_02": [at(2028, 2), at(2028, 2, 29), at(2028, 3) - 1],
        "attempts_2028_03": [at(2028, 3)],
    }  # fmt: skip


def test_a_month_is_made_beside_a_long_reader_and_an_open_writer(url: str) -> None:
    async def main() -> None:
        reader, writer, maker = await asyncio.gather(*(asyncpg.connect(url) for _ in range(3)))
        async with reader.transaction(), writer.transaction():
            for table in TABLES:
                await reader.fetch(f"SELECT count(*) FROM {table}")
            await writer.execute(ATTEMPT, new_id(), 1)
            await maker.execute("SET lock_timeout = '2s'")
            assert await ensure_months(maker, [date(2032, 1, 1)])
        await asyncio.gather(reader.close(), writer.close(), maker.close())

    asyncio.run(main())


def test_a_month_that_a_rolled_back_transaction_made_can_be_made_again(url: str) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN")
        assert await ensure_months(connection, [date(2033, 1, 1)])
        await connection.execute("ROLLBACK")
        assert await ensure_months(connection, [date(2033, 1, 1)])
        await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("month", [date(1970, 1, 1), date(2019, 12, 1), date(2100, 1, 1), date(9999, 12, 1)])
def test_a_clock_that_is_out_of_its_mind_makes_no_month(url: str, month: date) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(url)
        try:
            with pytest.raises(asyncpg.InvalidParameterValueError, match="outside of the years 2020 to 2099"):
                await ensure_months(connection, [month])
        finally:
            await connection.close()

    asyncio.run(main())


def test_finding_no_month_missing_costs_next_to_nothing(url: str) -> None:
    async def main() -> float:
        connection = await asyncpg.connect(url)
        this = [datetime.now(UTC).date()]
        await ensure_months(connection, this)
        best = min([await _seconds(connection, this) for _ in range(20)])
        await connection.close()
        return best

    async def _seconds(connection: asyncpg.Connection, months: list[date]) -> float:
        begun = time.perf_counter()
        await ensure_months(connection, months)
        return time.perf_counter() - begun

    assert asyncio.run(main()) < 0.02
