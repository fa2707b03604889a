"""Budgets: spend and open holds together never pass them, to the last unit; unused holds come back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime

import pytest
import pytest_asyncio

from api.limits.decisions import Admitted, LimitsUnavailable, Refused
from ledger.money import UNIT
from tests.api.gate import CENT, Gate, SetClock, Spent, an_app, budget, gate, requests, slots, tokens
from tests.own_valkey import OwnValkey, own_valkey

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest_asyncio.fixture
async def door(server: OwnValkey) -> AsyncIterator[Gate]:
    async with gate(server.url) as door:
        yield door


async def test_ten_at_once_on_a_budget_for_two_admit_two_and_the_unused_hold_comes_back(door: Gate) -> None:
    app = an_app(budget(UNIT))
    outcomes = await asyncio.gather(*(door.admit(app, hold=40 * CENT) for _ in range(10)))
    inside = [call_id for call_id, decision in outcomes if isinstance(decision, Admitted)]
    refused = [decision for _, decision in outcomes if isinstance(decision, Refused)]
    assert len(inside) == 2
    assert len(refused) == 8
    assert {refusal.code for refusal in refused} == {"insufficient_quota"}
    assert {refusal.should_retry for refusal in refused} == {False}
    assert {refusal.retry_after_s for refusal in refused} == {None}
    assert await door.used(app) == 80 * CENT
    for call_id in inside:
        await door.settle(call_id, spent=10 * CENT)
    assert await door.used(app) == 20 * CENT
    await door.admitted(app, hold=40 * CENT)
    await door.admitted(app, hold=40 * CENT)
    await door.refused(app, hold=1)
    assert await door.used(app) == UNIT


async def test_a_refusal_says_what_was_needed_what_is_there_and_which_max_tokens_would_pass(
    door: Gate,
) -> None:
    app = an_app(budget(UNIT))
    await door.settle(await door.admitted(app, hold=UNIT), spent=95 * CENT)
    refusal = await door.refused(
        app, hold=9 * CENT, tokens=900, output_tokens=800, choices=2, completion_price=CENT // 100
    )
    assert "0.09 USD" in refusal.message
    assert "0.05 of 1 USD" in refusal.message
    assert "max_tokens of at most 200 " in refusal.message
    nothing = await door.refused(
        app, hold=9 * CENT, tokens=9, output_tokens=1, choices=1, completion_price=CENT
    )
    assert "max_tokens" not in nothing.message


async def test_ten_dimes_make_a_dollar_exactly(door: Gate) -> None:
    app = an_app(budget(UNIT))
    for _ in range(10):
        await door.settle(await door.admitted(app, hold=10 * CENT), spent=10 * CENT)
    refusal = await door.refused(app, hold=1)
    assert "0 of 1 USD" in refusal.message
    assert await door.used(app) == UNIT


async def test_amounts_beyond_what_a_double_can_tell_apart_are_compared_to_the_last_unit(door: Gate) -> None:
    """2^53 units are 9,007 USD; from there on doubles skip units."""
    app = an_app(budget(1_234_567 * UNIT + 1))
    await door.admitted(app, hold=234_567 * UNIT)
    await door.admitted(app, hold=10**6 * UNIT)
    await door.refused(app, hold=2)
    await door.admitted(app, hold=1)
    await door.refused(app, hold=1)
    assert await door.used(app) == 1_234_567 * UNIT + 1


async def test_a_settlement_of_any_size_is_exact(door: Gate) -> None:
    app = an_app(budget(8_000_000 * UNIT))
    calls = [await door.admitted(app, hold=900_000 * UNIT + n) for n in range(8)]
    for n, call_id in enumerate(calls):
        await door.settle(call_id, spent=899_999 * UNIT + n if n % 2 else 0)
    assert await door.used(app) == 4 * 899_999 * UNIT + 1 + 3 + 5 + 7


async def test_budgets_too_large_to_count_hold_nobody_up(door: Gate) -> None:
    """The limits server counts in 64 bits: 9.2 million of a currency."""
    app = an_app(budget(10**25))
    for _ in range(8):
        await door.admitted(app, hold=10**18)
    refusal = await door.refused(app, hold=10**18)
    assert refusal.code == "insufficient_quota"
    refusal = await door.refused(app, hold=10**18 + 1)
    assert "smaller max_tokens" in refusal.message
    soft = an_app(budget(UNIT, hard=False))
    for _ in range(12):
        await door.admitted(soft, hold=10**18)


async def test_a_charge_above_the_hold_counts_in_full(door: Gate) -> None:
    app = an_app(budget(UNIT))
    await door.settle(await door.admitted(app, hold=50 * CENT), spent=70 * CENT)
    await door.refused(app, hold=31 * CENT)
    await door.admitted(app, hold=30 * CENT)


async def test_calls_that_cost_nothing_pass_an_empty_budget(door: Gate) -> None:
    app = an_app(budget(UNIT))
    await door.admitted(app, hold=UNIT)
    await door.refused(app, hold=1)
    await door.settle(await door.admitted(app, hold=0), spent=0)


async def test_a_soft_budget_counts_and_refuses_nobody(door: Gate) -> None:
    app = an_app(budget(UNIT, hard=False))
    for _ in range(3):
        await door.settle(await door.admitted(app, hold=UNIT), spent=UNIT)
    assert await door.used(app) == 3 * UNIT


async def test_a_budget_that_is_raised_or_lowered_counts_what_was_spent_before(door: Gate) -> None:
    app = an_app(budget(UNIT))
    await door.settle(await door.admitted(app, hold=80 * CENT), spent=80 * CENT)
    raised = type(app)(app.id, app.organisation_id, app.name, (), (budget(2 * UNIT),))
    await door.admitted(raised, hold=110 * CENT)
    lowered = type(app)(app.id, app.organisation_id, app.name, (), (budget(UNIT // 2),))
    refusal = await door.refused(lowered, hold=1)
    assert "0 of 0.5 USD" in refusal.message


async def test_a_budget_that_an_app_gets_while_a_call_runs_holds_and_settles_that_call_too(
    door: Gate,
) -> None:
    app = an_app(requests(100))
    running = await door.admitted(app, hold=60 * CENT)
    capped = type(app)(app.id, app.organisation_id, app.name, app.limits, (budget(UNIT),))
    await door.refused(capped, hold=41 * CENT)
    await door.settle(running, spent=10 * CENT)
    assert await door.used(app) == 10 * CENT
    await door.admitted(capped, hold=90 * CENT)


async def test_what_the_ledger_has_charged_before_counts_from_the_first_call_on(server: OwnValkey) -> None:
    app = an_app(budget(UNIT))
    spent = Spent({(app.id, None): 90 * CENT})
    async with gate(server.url, spent=spent) as door:
        outcomes = await asyncio.gather(*(door.admit(app, hold=4 * CENT) for _ in range(5)))
        assert sum(isinstance(decision, Admitted) for _, decision in outcomes) == 2
        assert spent.asked == [(app.id, None, "USD", None)]


async def test_while_the_ledger_cannot_be_asked_an_unknown_app_is_neither_refused_nor_let_in(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(budget(UNIT))
    known = an_app(budget(UNIT))
    async with gate(server.url) as door:
        await door.admitted(known, hold=CENT)
        door.spent.fails = True
        outcomes = await asyncio.gather(*(door.admit(app, hold=CENT) for _ in range(20)))
        assert {type(decision) for _, decision in outcomes} == {LimitsUnavailable}
        _, decision = await door.admit(app, hold=CENT)
        assert isinstance(decision, LimitsUnavailable)
        assert decision.retry_after_s == 1
        assert len(caplog.records) == 1
        await door.admitted(known, hold=CENT)
        door.spent.fails = False
        async with asyncio.timeout(3):
            while not isinstance((await door.admit(app, hold=CENT))[1], Admitted):
                await asyncio.sleep(0.02)


async def test_day_and_month_budgets_begin_anew_and_old_calls_settle_where_they_began(
    server: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch, datetime(2028, 2, 29, 23, 59, 50, tzinfo=UTC).timestamp())
    app = an_app(budget(UNIT, "day"), budget(3 * UNIT, "month"), budget(5 * UNIT, "total"))
    async with gate(server.url) as door:
        await clock.set(door.client, clock.now)
        late = await door.admitted(app, hold=UNIT)
        assert {since for *_, since in door.spent.asked} == {None, date(2028, 2, 29), date(2028, 2, 1)}
        refusal = await door.refused(app, hold=1)
        assert "per day" in refusal.message
        await clock.advance(door.client, 20)
        next_day = await door.admitted(app, hold=UNIT)
        await door.settle(late, spent=30 * CENT)
        assert await door.used(app, "month:202802") == 30 * CENT
        assert await door.used(app, "month:202803") == UNIT
        assert await door.used(app, "total") == 130 * CENT
        await door.settle(next_day, spent=0)
        assert await door.used(app, "month:202803") == 0
        for _ in range(3):
            await clock.advance(door.client, 86_400)
            await door.settle(await door.admitted(app, hold=UNIT), spent=UNIT)
        await clock.advance(door.client, 86_400)
        refusal = await door.refused(app, hold=CENT)
        assert "per month" in refusal.message


@pytest.mark.parametrize(
    "when", ["1999-12-31", "2000-02-29", "2024-02-29", "2026-01-01", "2026-12-31", "2100-03-01"]
)
async def test_months_are_those_of_the_calendar(
    server: OwnValkey, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    moment = datetime.fromisoformat(when).replace(tzinfo=UTC)
    clock = SetClock(monkeypatch, moment.timestamp() + 86_399)
    app = an_app(budget(UNIT, "month"))
    async with gate(server.url) as door:
        await clock.set(door.client, clock.now)
        await door.admitted(app, hold=CENT)
        assert await door.used(app, f"month:{moment:%Y%m}") == CENT


async def test_end_users_have_budgets_of_their_own_inside_the_apps(server: OwnValkey) -> None:
    app = an_app(budget(UNIT), budget(30 * CENT, subject="end_user"))
    spent = Spent({(app.id, None): 0, (app.id, "bert"): 25 * CENT})
    async with gate(server.url, spent=spent) as door:
        await door.admitted(app, hold=30 * CENT, end_user="anna")
        refusal = await door.refused(app, hold=1, end_user="anna")
        assert "this end user" in refusal.message
        await door.refused(app, hold=6 * CENT, end_user="bert")
        bert = await door.admitted(app, hold=5 * CENT, end_user="bert")
        await door.settle(bert, spent=0)
        await door.admitted(app, hold=5 * CENT, end_user="bert")
        refusal = await door.refused(app, hold=66 * CENT)
        assert "this app" in refusal.message
        assert await door.used(app) == 35 * CENT


async def test_a_refused_call_takes_nothing_from_any_budget_window_or_slot(door: Gate) -> None:
    app = an_app(
        requests(5), tokens(100), slots(2), budget(UNIT), budget(50 * CENT, "month"),
        budget(20 * CENT, subject="end_user"), slots(1, "end_user"),
    )  # fmt: skip
    refusals = (
        await door.refused(app, tokens=101, hold=CENT),
        await door.refused(app, tokens=10, hold=51 * CENT),
        await door.refused(app, tokens=10, hold=21 * CENT, end_user="anna"),
    )
    assert [refusal.code for refusal in refusals] == [
        "rate_limit_exceeded", "insufficient_quota", "insufficient_quota",
    ]  # fmt: skip
    first = await door.admitted(app, tokens=50, hold=20 * CENT, end_user="anna")
    refusal = await door.refused(app, tokens=50, hold=CENT, end_user="anna")
    assert refusal.code == "insufficient_quota"  # of several reasons the one that waiting does not mend
    await door.admitted(app, tokens=50, hold=30 * CENT)
    assert await door.used(app) == await door.used(app, f"month:{datetime.now(UTC):%Y%m}") == 50 * CENT
    await door.settle(first, spent=0, tokens=0)
    await door.admitted(app, tokens=50, hold=20 * CENT, end_user="anna")


async def test_a_budget_in_another_currency_lets_nothing_pass(door: Gate) -> None:
    app = an_app(budget(UNIT, currency="EUR"), requests(5), tokens(100))
    for _ in range(2):
        refusal = await door.refused(app, tokens=40, hold=1)
        assert refusal.code == "insufficient_quota"
        assert refusal.should_retry is False
        assert "USD" in refusal.message
        assert b"x-ratelimit-remaining-requests: 5\r\n" in refusal.headers
        assert b"x-ratelimit-remaining-tokens: 100\r\n" in refusal.headers
    assert (await door.refused(an_app(budget(UNIT, currency="EUR")), hold=1)).headers == b""


async def test_a_short_budgets_refusal_says_what_is_left_of_the_limits(door: Gate) -> None:
    app = an_app(budget(UNIT), requests(5), tokens(100))
    await door.admitted(app, tokens=60, hold=UNIT)
    for needed in (10, 41, 101):
        refusal = await door.refused(app, tokens=needed, hold=1)
        assert refusal.code == "insufficient_quota"
        assert b"x-ratelimit-remaining-requests: 4\r\n" in refusal.headers
        assert b"x-ratelimit-remaining-tokens: 40\r\n" in refusal.headers
