"""The limits server killed, frozen, emptied, absent, full: no pass too many, no 429, all back by itself."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.access.directory import App
from api.limits.decisions import Admitted, LimitsUnavailable
from ledger.money import UNIT
from tests.api.gate import CENT, Gate, Spent, an_app, budget, gate, requests, slots, tokens
from tests.api.limits_process import limits_process
from tests.own_valkey import OwnValkey, ask, eventually, own_valkey

pytestmark = pytest.mark.asyncio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path) as running:
        yield running


async def admitted_again(door: Gate, app: App, hold: int = 0, within: float = 4.0) -> str:
    """The first call that passes; until then nobody can say."""
    deadline = time.monotonic() + within
    while True:
        call_id, decision = await door.admit(app, hold=hold)
        if isinstance(decision, Admitted):
            return call_id
        assert isinstance(decision, LimitsUnavailable), decision
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_killed_server_forgets_nothing(server: OwnValkey) -> None:
    app = an_app(requests(10), tokens(1000), slots(3), budget(UNIT))
    async with gate(server.url) as door:
        first = await door.admitted(app, tokens=500, hold=50 * CENT)
        await door.settle(await door.admitted(app, tokens=100, hold=30 * CENT), spent=20 * CENT, tokens=100)
        server.kill()
        door.limiter.settle(first, spent=10 * CENT, tokens=300)
        _, decision = await door.admit(app)
        assert isinstance(decision, LimitsUnavailable)
        server.start()
        call_id = await admitted_again(door, app, hold=70 * CENT)
        await door.all_settled()
        refusal = await door.refused(app, hold=1)
        assert refusal.code == "insufficient_quota"
        await door.settle(call_id)
        assert await door.used(app) == 30 * CENT


async def test_a_server_that_freezes_at_the_release_leaks_no_slot(server: OwnValkey) -> None:
    app = an_app(slots(2), budget(UNIT))
    async with gate(server.url) as door:
        inside = [await door.admitted(app, hold=CENT) for _ in range(2)]
        with server.frozen():
            for call_id in inside:
                door.limiter.settle(call_id, spent=CENT, tokens=0)
            await asyncio.sleep(0)
            began = time.monotonic()
            while time.monotonic() < began + 3:
                _, decision = await door.admit(app, hold=CENT)
                assert isinstance(decision, LimitsUnavailable)
                await asyncio.sleep(0.05)
        await eventually(lambda: door.client.connected, "the client is back")
        await door.all_settled()
        assert await door.used(app) == 2 * CENT
        await door.admitted(app, hold=CENT)
        await door.admitted(app, hold=CENT)
        await door.refused(app, hold=CENT)


async def test_an_admission_whose_answer_was_lost_holds_nothing(server: OwnValkey) -> None:
    app = an_app(requests(5), tokens(1000), slots(5), budget(UNIT))
    async with gate(server.url) as door, gate(server.url) as other:
        await door.settle(await door.admitted(app, hold=CENT))
        with server.frozen():
            began = time.monotonic()
            outcomes = await asyncio.gather(*(door.admit(app, tokens=100, hold=CENT) for _ in range(4)))
            assert {type(decision) for _, decision in outcomes} == {LimitsUnavailable}
            assert time.monotonic() - began < 2.0
        await eventually(lambda: door.client.connected and other.client.connected, "both are back")
        await door.all_settled()
        assert await door.used(app) == 0
        inside = [await other.admitted(app, tokens=200, hold=CENT) for _ in range(4)]
        assert len(inside) == 4


async def test_a_server_that_is_absent_at_the_start_lets_nobody_in_and_refuses_nobody(
    tmp_path: Path,
) -> None:
    server, app = OwnValkey(tmp_path), an_app(requests(1))
    async with gate(server.url) as door:
        outcomes = await asyncio.gather(*(door.admit(app) for _ in range(5)))
        assert {type(decision) for _, decision in outcomes} == {LimitsUnavailable}
        server.start()
        await admitted_again(door, app)
        await door.refused(app)
    server.kill()


async def test_a_server_that_lost_all_data_admits_only_what_fits_beside_the_open_calls(
    server: OwnValkey,
) -> None:
    app = an_app(slots(3), budget(UNIT), budget(UNIT, "month"))
    spent = Spent()
    async with (
        gate(server.url, grace=0.5, spent=spent) as one,
        gate(server.url, grace=0.5, spent=spent) as two,
    ):
        mine = await one.admitted(app, hold=50 * CENT)
        theirs = await two.admitted(app, hold=30 * CENT)
        await one.settle(await one.admitted(app, hold=10 * CENT), spent=10 * CENT)
        server.kill()
        server.forget()
        await eventually(lambda: not (one.client.connected or two.client.connected), "the loss is noticed")
        spent.amounts[app.id, None] = 10 * CENT  # the ledger has the settled call
        server.start()
        outcomes = await asyncio.gather(
            *(door.admit(app, hold=6 * CENT) for door in (one, two) for _ in range(5))
        )
        inside = [call_id for call_id, decision in outcomes if isinstance(decision, Admitted)]
        assert len(inside) <= 1
        await eventually(lambda: one.client.connected and two.client.connected, "both are back")
        if not inside:
            inside = [await admitted_again(one, app, hold=6 * CENT)]
        refusal = await two.refused(app, hold=5 * CENT)
        assert "0.04 of 1 USD" in refusal.message
        refusal = await two.refused(app, hold=CENT)
        assert refusal.code == "rate_limit_exceeded"  # three slots, three calls
        await one.settle(mine, spent=20 * CENT)
        await two.settle(theirs, spent=30 * CENT)
        for door in (one, two):
            await door.settle(inside[0], spent=0)
        assert await one.used(app) == 60 * CENT


async def test_a_server_emptied_while_it_runs_is_noticed_too(server: OwnValkey) -> None:
    app = an_app(slots(2), budget(UNIT))
    async with gate(server.url, lease=1.0, grace=0.5) as one, gate(server.url, lease=1.0, grace=0.5) as two:
        mine = await one.admitted(app, hold=50 * CENT)
        theirs = await two.admitted(app, hold=40 * CENT)
        await ask(one.client, "FLUSHALL")
        refusal = await two.refused(app, hold=11 * CENT)
        assert "0.1 of 1 USD" in refusal.message
        await one.settle(mine, spent=0)
        await two.settle(theirs, spent=0)
        assert await one.used(app) == 0


async def test_tokens_that_a_lost_window_counted_are_not_taken_out_of_the_new_one(server: OwnValkey) -> None:
    app = an_app(tokens(1000))
    async with gate(server.url) as door:
        before = await door.admitted(app, tokens=1000)
        await ask(door.client, "FLUSHALL")
        await door.admitted(app, tokens=1000)
        await door.settle(before, tokens=0)
        await door.refused(app, tokens=1)


async def test_after_a_loss_processes_that_were_known_are_awaited_but_not_longer_than_a_lease(
    server: OwnValkey,
) -> None:
    app = an_app(slots(1))
    async with gate(server.url, lease=1.5, grace=0.1) as door:
        with limits_process(server.url, app, 1.5) as dead:
            await admitted_again(door, an_app())
            await eventually(lambda: door.limiter.peers, "the other process is known")
            dead.process.kill()
        await ask(door.client, "FLUSHALL")
        began = time.monotonic()
        await admitted_again(door, app)
        assert 1.0 < time.monotonic() - began < 5


async def test_scripts_that_the_server_forgot_are_loaded_again(server: OwnValkey) -> None:
    app = an_app(slots(1), budget(UNIT))
    async with gate(server.url) as door:
        call_id = await door.admitted(app, hold=CENT)
        await ask(door.client, "SCRIPT", "FLUSH")
        await door.settle(call_id, spent=CENT)
        await ask(door.client, "SCRIPT", "FLUSH")
        await door.admitted(app, hold=CENT)
        assert await door.used(app) == 2 * CENT


async def test_a_full_server_is_an_outage_for_new_calls_while_open_ones_settle(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(slots(2), budget(UNIT))
    async with gate(server.url) as door:
        call_id = await door.admitted(app, hold=CENT)
        await ask(door.client, "CONFIG", "SET", "maxmemory", "1")
        for _ in range(5):
            _, decision = await door.admit(app, hold=CENT)
            assert isinstance(decision, LimitsUnavailable)
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
        await door.settle(call_id, spent=2 * CENT)
        assert await door.used(app) == 2 * CENT
        await ask(door.client, "CONFIG", "SET", "maxmemory", "0")
        await door.settle(await door.admitted(app, hold=CENT))
        assert await door.used(app) == 2 * CENT


async def test_a_process_that_ends_in_an_outage_says_what_it_could_not_settle(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(budget(UNIT))
    async with gate(server.url) as door:
        call_id = await door.admitted(app, hold=CENT)
        server.kill()
        door.limiter.settle(call_id, spent=CENT, tokens=0)
        await asyncio.sleep(0)
    assert "1 settlements have not reached the limits server" in caplog.text


async def test_an_outage_is_two_lines_in_the_log_however_many_calls_meet_it(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(requests(1000))
    async with gate(server.url) as door:
        await door.admitted(app)
        caplog.clear()
        server.kill()
        await asyncio.gather(*(door.admit(app) for _ in range(200)))
        server.start()
        await admitted_again(door, app)
        assert len(caplog.records) == 2
