"""Holds of processes that died end when the books know their calls, and never by time alone."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import asyncpg
import pytest

from api.access.directory import App
from api.limits.spent import Charge, LedgerSpent
from ledger.ids import new_id
from ledger.money import UNIT
from tests.api.gate import CENT, Gate, Spent, an_app, budget, gate, slots, tokens
from tests.api.limits_process import limits_process
from tests.own_valkey import OwnValkey, ask, eventually, own_valkey

pytestmark = pytest.mark.asyncio

LEASE = 0.6  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


async def calls_of(door: Gate, app: App) -> list[str]:
    reply = await ask(door.client, "HKEYS", f"tollgate:{{{app.id}}}:calls")
    assert isinstance(reply, list)
    return [call_id.decode() for call_id in reply]


async def until_used(door: Gate, app: App, amount: int, within: float = 6 * LEASE + 2) -> None:
    deadline = time.monotonic() + within
    while await door.used(app) != amount:
        assert time.monotonic() < deadline, await door.used(app)
        await asyncio.sleep(0.02)


async def test_calls_of_a_killed_process_are_settled_by_the_books_and_others_wait_for_them(
    server: OwnValkey,
) -> None:
    app = an_app(budget(UNIT), budget(UNIT, "day", "end_user"), slots(9), tokens(100))
    spent = Spent()
    async with (
        gate(server.url, lease=LEASE, spent=spent) as one,
        gate(server.url, lease=LEASE, spent=spent) as two,
    ):
        with limits_process(server.url, app, LEASE) as doomed:
            doomed.order(f"admit 3 10 {10 * CENT}")
            assert doomed.answer() == {"Admitted": 3}
            doomed.process.kill()
        mine = await one.admitted(app, tokens=20, hold=5 * CENT)
        theirs = await two.admitted(app, tokens=20, hold=5 * CENT)
        first, second, third = sorted(set(await calls_of(one, app)) - {mine, theirs})
        spent.charges[first] = Charge(4 * CENT, 2)
        spent.charges[second] = Charge(0, 0)
        await until_used(one, app, (4 + 10 + 5 + 5) * CENT)
        assert sorted(await calls_of(one, app)) == sorted([third, mine, theirs])
        await asyncio.sleep(0.25)
        assert await one.used(app) == 24 * CENT
        spent.charges[third] = Charge(10 * CENT, 10)
        await until_used(one, app, 24 * CENT)
        await one.settle(mine, spent=0, tokens=0)
        await two.settle(theirs, spent=0, tokens=0)
        await until_used(one, app, 14 * CENT)
        _, decision = await one.admit(app, tokens=88)
        assert "remaining-tokens: 0" in str(decision)


async def test_while_the_books_cannot_be_read_nothing_is_given_back(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    app, spent = an_app(budget(UNIT)), Spent()
    async with gate(server.url, lease=LEASE, spent=spent) as door:
        with limits_process(server.url, app, LEASE) as doomed:
            doomed.order(f"admit 1 10 {10 * CENT}")
            doomed.answer()
            doomed.process.kill()
        (call_id,) = await calls_of(door, app)
        spent.charges[call_id] = Charge(CENT, 1)
        spent.fails = True
        await eventually(lambda: "could not be settled" in caplog.text, "it was tried")
        assert await door.used(app) == 10 * CENT
        spent.fails = False
        await until_used(door, app, CENT)


@pytest.fixture
def app_id() -> str:
    return new_id()


async def day_row(connection: asyncpg.Connection, app_id: str, day: date, user: str, charge: str) -> None:
    await connection.execute(
        """
        INSERT INTO usage_days (day, organisation_id, app_id, key_id, end_user, model, currency, calls,
                                prompt_tokens, cached_tokens, completion_tokens, charge)
        VALUES ($1, gen_random_uuid(), $2, gen_random_uuid(), $3, 'm', $4, 1, 1, 0, 1, $5::text::numeric)
        """,
        day, app_id, user, "EUR" if user == "euro" else "USD", charge,
    )  # fmt: skip


async def test_the_ledger_says_what_was_spent_by_app_end_user_currency_and_day(
    database: str, app_id: str
) -> None:
    connection = await asyncpg.connect(database)
    for day, user, charge in (
        (date(2026, 1, 31), "", "1000000.000000000001"),
        (date(2026, 2, 1), "anna", "0.5"),
        (date(2026, 2, 2), "anna", "0.25"),
        (date(2026, 2, 2), "euro", "7"),
    ):
        await day_row(connection, app_id, day, user, charge)
    await day_row(connection, new_id(), date(2026, 2, 2), "anna", "99")
    await connection.close()
    ledger = LedgerSpent(database)
    assert await ledger.spent_of(app_id, None, "USD", None) == 1_000_000 * UNIT + 1 + 75 * CENT
    assert await ledger.spent_of(app_id, None, "USD", date(2026, 2, 1)) == 75 * CENT
    assert await ledger.spent_of(app_id, "anna", "USD", date(2026, 2, 2)) == 25 * CENT
    assert await ledger.spent_of(app_id, None, "EUR", None) == 7 * UNIT
    assert await ledger.spent_of(new_id(), None, "USD", None) == 0


async def test_the_ledger_knows_ended_calls_by_their_rows_and_lost_ones_by_journals_read_to_the_end(
    database: str, app_id: str
) -> None:
    now_ms = time.time_ns() // 1_000_000
    month = datetime.now(UTC)
    ended, old, young = new_id(), new_id(now_ms - 660_000), new_id(now_ms - 5_000)
    began = time.time_ns() // 1000
    connection = await asyncpg.connect(database)
    await connection.execute(
        """
        INSERT INTO usage (id, organisation_id, app_id, key_id, model, endpoint, stream, outcome, status,
            prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, usage_source, charge, currency,
            hold, prompt_bound, cache, flags, admitted_at, duration_us, host, journal)
        VALUES ($1, $2, $2, $2, 'm', 'chat/completions', false, 'completed', 200, 7, 0, 3, 0, 'engine',
            0.000000000013, 'USD', 1, 10, 'off', '{}', $3, 1, 'h', 'j')
        """,
        ended, app_id, month,
    )  # fmt: skip
    owner = f"host-with-dashes-77-{began}"
    owners = {ended: owner, old: owner, young: owner}
    ledger = LedgerSpent(database)

    async def journal(name: str, finished: bool) -> dict[str, Charge]:
        await connection.execute(
            "INSERT INTO journal_files VALUES ($1, $2, 0, $3) ON CONFLICT (host, name) DO UPDATE SET"
            " finished = excluded.finished",
            "host-with-dashes", name, finished,
        )  # fmt: skip
        return await ledger.charges_of(owners)

    known = {ended: Charge(13, 10)}
    assert await ledger.charges_of(owners) == known  # no journal of that process is known yet
    assert await journal(f"host-with-dashes-77-{began - 10**9}-000001.journal", True) == known
    assert await journal(f"host-with-dashes-78-{began}-000001.journal", True) == known
    assert await journal(f"host-with-dashes-77-{began + 5}-000001.journal", True) == {
        **known,
        old: Charge(0, 0),
    }
    assert await journal(f"host-with-dashes-77-{began + 5}-000002.journal", False) == known
    assert await journal(f"host-with-dashes-77-{began + 5}-000002.journal", True) == {
        **known,
        old: Charge(0, 0),
    }
    await connection.close()
