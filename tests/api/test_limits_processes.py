"""Several processes at once share one limit; one that is killed gives its slots back within the lease."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from api.access.directory import App
from api.limits.decisions import Admitted
from ledger.money import UNIT
from tests.api.gate import CENT, an_app, budget, gate, requests, slots, tokens
from tests.api.limits_process import LimitsProcess, limits_process
from tests.own_valkey import OwnValkey, own_valkey
from tests.waiting import until

LEASE = 1.0  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@contextlib.contextmanager
def two(server: OwnValkey, app: App) -> Iterator[tuple[LimitsProcess, LimitsProcess]]:
    with limits_process(server.url, app, LEASE) as one, limits_process(server.url, app, LEASE) as other:
        yield one, other


def admitted(processes: tuple[LimitsProcess, ...], count: int, tokens: int = 0, hold: int = 0) -> int:
    """How many of `count` calls, asked for by each process at the same moment, pass; the rest is refused."""
    for process in processes:
        process.order(f"admit {count} {tokens} {hold}")
    answers = [process.answer() for process in processes]
    passed: int = sum(answer.get("Admitted", 0) for answer in answers)
    assert passed + sum(answer.get("Refused", 0) for answer in answers) == count * len(processes)
    return passed


def settle(processes: tuple[LimitsProcess, ...], spent: int = 0, tokens: int = 0) -> None:
    for process in processes:
        process.order(f"settle {spent} {tokens}")
    for process in processes:
        process.answer()


@pytest.mark.parametrize(
    ("rule", "tokens_each", "hold_each", "fit"),
    [
        (requests(37), 1, 0, 37),
        (tokens(1000), 30, 0, 33),
        (slots(25), 1, 0, 25),
        (budget(UNIT), 1, 40 * CENT, 2),
        (requests(11, "day", "end_user"), 1, 0, 11),
        (slots(9, "end_user"), 1, 0, 9),
        (budget(UNIT, "month", "end_user"), 1, 3 * CENT, 33),
    ],
)
def test_two_processes_at_once_pass_no_limit(
    server: OwnValkey, rule: object, tokens_each: int, hold_each: int, fit: int
) -> None:
    app = an_app(rule)  # type: ignore[arg-type]
    with two(server, app) as processes:
        assert admitted(processes, 150, tokens_each, hold_each) == fit
        assert admitted(processes, 50, tokens_each, hold_each) == 0


def test_spend_and_holds_of_two_processes_stay_below_the_budget_until_less_than_a_hold_is_left(
    server: OwnValkey,
) -> None:
    app = an_app(budget(UNIT))
    with two(server, app) as processes:
        calls = 0
        for _ in range(100):
            passed = admitted(processes, 20, 10, 8 * CENT)
            calls += passed
            if not passed:
                break
            settle(processes, 2 * CENT, 3)
        # Each cost a quarter of its hold; the last that could be held began with 8 cents left.
        assert (100 - 2 * calls) < 8
        assert 2 * calls <= 100


def test_a_killed_process_frees_its_slots_within_the_lease_and_the_living_keep_theirs(
    server: OwnValkey,
) -> None:
    app = an_app(slots(4))
    with two(server, app) as (doomed, living):
        living.order("admit 2 1 0")
        assert living.answer() == {"Admitted": 2}
        doomed.order("admit 3 1 0")
        assert doomed.answer() == {"Admitted": 2, "Refused": 1}
        doomed.process.kill()
        killed = time.monotonic()
        assert admitted((living,), 1, 1) == 0
        passed = until(lambda: admitted((living,), 3, 1), "slots of the killed process are free", 3 * LEASE)
        assert time.monotonic() - killed < LEASE + 1.0
        assert passed == 2  # not four: the living process's calls are older than a lease and still held
        time.sleep(LEASE / 4)
        assert admitted((living,), 1, 1) == 0


def test_calls_longer_than_the_lease_keep_their_slot(server: OwnValkey) -> None:
    app = an_app(slots(1), slots(1, "end_user"))
    with two(server, app) as (holder, other):
        holder.order("admit 1 1 0")
        assert holder.answer() == {"Admitted": 1}
        ends = time.monotonic() + 2.5 * LEASE
        while time.monotonic() < ends:
            assert admitted((other,), 1, 1) == 0
            time.sleep(0.05)
        settle((holder,))
        assert admitted((other,), 1, 1) == 1


@pytest.mark.asyncio
async def test_slots_come_back_from_every_kind_of_end(server: OwnValkey) -> None:
    app = an_app(slots(2), budget(UNIT))
    async with gate(server.url, lease=LEASE) as door:
        for turn in range(50):
            outcomes = await asyncio.gather(*(door.admit(app, tokens=5, hold=CENT) for _ in range(3)))
            inside = [call_id for call_id, decision in outcomes if isinstance(decision, Admitted)]
            assert len(inside) == 2
            for call_id in inside:
                if turn % 2:
                    door.limiter.withdraw(call_id)
                door.limiter.settle(call_id, spent=0, tokens=turn)
                door.limiter.settle(call_id, spent=CENT, tokens=turn)
            await door.all_settled()
        assert await door.used(app) == 0
