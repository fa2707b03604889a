"""Requests and tokens per minute and day: never above the rule, true refusals, corrections that count."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest
import pytest_asyncio

from api.limits.decisions import Admitted, Refused
from tests.api.gate import Gate, SetClock, an_app, gate, requests, tokens
from tests.own_valkey import OwnValkey, ask, own_valkey

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(monkeypatch)


@pytest_asyncio.fixture
async def door(server: OwnValkey, clock: SetClock) -> AsyncIterator[Gate]:
    async with gate(server.url) as door:
        await clock.set(door.client, clock.now)
        yield door


def header(decision: Admitted | Refused, name: str) -> str | None:
    found = re.search(rf"^x-ratelimit-{name}: (.+)\r$", decision.headers.decode(), re.MULTILINE)
    return found.group(1) if found else None


async def test_a_limit_is_reached_exactly_and_a_refused_call_uses_up_nothing(door: Gate) -> None:
    app = an_app(requests(3), tokens(1000))
    for left in (2, 1, 0):
        _, decision = await door.admit(app, tokens=100)
        assert isinstance(decision, Admitted)
        assert header(decision, "limit-requests") == "3"
        assert header(decision, "remaining-requests") == str(left)
    for _ in range(3):
        refusal = await door.refused(app, tokens=100)
        assert refusal.code == "rate_limit_exceeded"
        assert header(refusal, "remaining-tokens") == "700"
        assert header(refusal, "remaining-requests") == "0"


async def test_retry_after_is_true_to_the_second(door: Gate, clock: SetClock) -> None:
    app = an_app(requests(2))
    await door.admitted(app)
    await clock.advance(door.client, 7.25)
    await door.admitted(app)
    await clock.advance(door.client, 10.5)
    first = await door.refused(app)
    assert first.retry_after_s is not None
    assert first.retry_after_s < 60
    assert f"{first.retry_after_s} s" in first.message
    await clock.advance(door.client, first.retry_after_s - 1.0)
    again = await door.refused(app)
    assert again.retry_after_s == 1
    await clock.advance(door.client, 1.0)
    await door.admitted(app)


async def test_retry_after_of_a_token_limit_waits_for_as_much_as_the_call_needs(
    door: Gate, clock: SetClock
) -> None:
    app = an_app(tokens(1000))
    for size in (300, 300, 400):
        await door.admitted(app, tokens=size)
        await clock.advance(door.client, 10)
    small, large = await door.refused(app, tokens=300), await door.refused(app, tokens=301)
    assert small.retry_after_s == 31
    assert large.retry_after_s == 41
    await clock.advance(door.client, 31)
    await door.refused(app, tokens=301)
    await door.admitted(app, tokens=300)


async def test_the_longest_wait_of_all_windows_is_the_one_that_is_said(door: Gate, clock: SetClock) -> None:
    app = an_app(requests(1), requests(1, "day"))
    await door.admitted(app)
    refusal = await door.refused(app)
    assert refusal.retry_after_s is not None
    assert 86_400 <= refusal.retry_after_s <= 86_400 + 900
    assert "per day" in refusal.message
    assert "h" in (header(refusal, "reset-requests") or "")


async def test_a_call_that_no_window_could_ever_hold_is_told_which_max_tokens_would_pass(door: Gate) -> None:
    refusal = await door.refused(an_app(tokens(1000)), tokens=1500, output_tokens=1200, choices=2)
    assert refusal.retry_after_s is None
    assert refusal.should_retry is False
    assert "max_tokens of at most 350" in refusal.message


async def test_unused_tokens_come_back_to_the_moment_that_counted_them(door: Gate, clock: SetClock) -> None:
    app = an_app(tokens(1000))
    call_id = await door.admitted(app, tokens=900)
    await clock.advance(door.client, 30)
    await door.admitted(app, tokens=100)
    await door.settle(call_id, tokens=50)
    _, decision = await door.admit(app, tokens=850)
    assert isinstance(decision, Admitted)
    assert header(decision, "remaining-tokens") == "0"
    await clock.advance(door.client, 31.5)  # the first call leaves the window with its 50, not with its 900
    _, decision = await door.admit(app, tokens=50)
    assert isinstance(decision, Admitted)
    assert header(decision, "remaining-tokens") == "0"
    await door.refused(app, tokens=1)


async def test_a_settlement_after_the_window_changes_nothing_in_it(door: Gate, clock: SetClock) -> None:
    app = an_app(tokens(1000))
    call_id = await door.admitted(app, tokens=900)
    await clock.advance(door.client, 61)
    await door.admitted(app, tokens=1000)
    await door.settle(call_id, tokens=0)
    await door.refused(app, tokens=1)


async def test_only_the_first_settlement_of_a_call_counts(door: Gate) -> None:
    app = an_app(tokens(1000))
    call_id = await door.admitted(app, tokens=600)
    for _ in range(3):
        await door.settle(call_id, tokens=500)
    await door.settle("0199-unknown", tokens=0)
    _, decision = await door.admit(app, tokens=500)
    assert isinstance(decision, Admitted)
    assert header(decision, "remaining-tokens") == "0"


async def test_a_call_that_used_more_than_it_reserved_counts_in_full(door: Gate) -> None:
    app = an_app(tokens(1000))
    await door.settle(await door.admitted(app, tokens=100), tokens=980)
    await door.refused(app, tokens=21)
    await door.admitted(app, tokens=20)


async def test_a_withdrawn_call_counts_as_never_asked_for(door: Gate) -> None:
    app = an_app(requests(1), tokens(100))
    call_id = await door.admitted(app, tokens=100)
    door.limiter.withdraw(call_id)
    await door.all_settled()
    await door.admitted(app, tokens=100)


async def test_headers_are_left_out_where_there_is_no_limit(door: Gate) -> None:
    _, free = await door.admit(an_app())
    _, by_tokens = await door.admit(an_app(tokens(5000, "day")), tokens=1)
    assert isinstance(free, Admitted)
    assert free.headers == b""
    assert isinstance(by_tokens, Admitted)
    assert header(by_tokens, "limit-requests") is None
    assert header(by_tokens, "limit-tokens") == "5000"


async def test_a_call_that_no_waiting_helps_carries_the_headers_too(door: Gate) -> None:
    app = an_app(requests(5), tokens(100))
    await door.admitted(app, tokens=30)
    refusal = await door.refused(app, tokens=101, output_tokens=50)
    assert (refusal.retry_after_s, refusal.should_retry) == (None, False)
    assert "A max_tokens of at most 49 would pass" in refusal.message
    assert [header(refusal, f"{what}-tokens") for what in ("limit", "remaining")] == ["100", "70"]
    assert [header(refusal, f"{what}-requests") for what in ("limit", "remaining")] == ["5", "4"]
    await door.admitted(app, tokens=70)  # the refused call was counted nowhere


async def test_resets_are_durations_of_one_form(door: Gate, clock: SetClock) -> None:
    app = an_app(requests(5))
    await clock.set(door.client, 1_800_000_000.5)
    _, decision = await door.admit(app)
    assert isinstance(decision, Admitted)
    assert header(decision, "reset-requests") == "1m1s"
    _, by_day = await door.admit(an_app(requests(5, "day")))
    assert isinstance(by_day, Admitted)
    assert re.fullmatch(r"24h\d+m\d+s", header(by_day, "reset-requests") or "")


async def test_end_users_are_limited_one_by_one_and_the_app_as_a_whole(door: Gate) -> None:
    app = an_app(requests(3), requests(2, subject="end_user"))
    await door.admitted(app, end_user="anna")
    await door.admitted(app, end_user="anna")
    refusal = await door.refused(app, end_user="anna")
    assert "this end user" in refusal.message
    await door.admitted(app, end_user="bert")
    refusal = await door.refused(app, end_user="bert")
    assert "this app" in refusal.message


async def test_end_users_names_do_not_reach_the_limits_server(door: Gate) -> None:
    app = an_app(requests(3, subject="end_user"))
    await door.admitted(app, end_user="anna@example.com")
    keys = await ask(door.client, "KEYS", f"*{app.id}*")
    assert isinstance(keys, list)
    assert len(keys) >= 2
    assert not any(b"anna" in key for key in keys)


async def test_end_users_windows_are_forgotten_when_nothing_is_left_in_them(door: Gate) -> None:
    app = an_app(requests(3, subject="end_user"))
    await door.admitted(app, end_user="anna")
    keys = await ask(door.client, "KEYS", f"*{app.id}*:user:*:state")
    assert isinstance(keys, list)
    (key,) = keys
    assert isinstance(life := await ask(door.client, "TTL", key), int)
    assert 86_400 < life <= 90_000


async def test_a_clock_that_steps_back_makes_time_stand_still(door: Gate, clock: SetClock) -> None:
    app = an_app(requests(2), tokens(100))
    first = await door.admitted(app, tokens=50)
    await clock.advance(door.client, -45)
    second = await door.admitted(app, tokens=50)
    await door.refused(app)
    await door.settle(first, tokens=10)
    await door.settle(second, tokens=10)
    await clock.advance(door.client, 45 + 62)
    _, decision = await door.admit(app, tokens=100)
    assert isinstance(decision, Admitted)


@pytest.mark.parametrize("seed", range(6))
async def test_no_sixty_seconds_and_no_day_ever_hold_more_than_the_limit(
    door: Gate, clock: SetClock, seed: int
) -> None:
    """Random calls at random times; every window of 60 s and 24 h that ends at an admission is counted."""
    random = Random(seed)
    per_minute, per_day, tokens_per_minute = 5, 40, 500
    app = an_app(requests(per_minute), requests(per_day, "day"), tokens(tokens_per_minute))
    log: list[list[float]] = []  # time, tokens counted
    running: dict[str, list[float]] = {}
    refused = 0
    for _ in range(400):
        pause = random.choice((0, 0.01, 0.4, 0.999, 1.0, 3, 17, 59.9, 60.0, 61.0, 5000, 30_000))
        await clock.advance(door.client, pause * random.choice((0.5, 1.0)))
        for call_id in [call_id for call_id in running if random.random() < 0.5]:
            entry = running.pop(call_id)
            entry[1] = random.randrange(int(entry[1]) + 1)
            await door.settle(call_id, tokens=int(entry[1]))
        size = random.choice((1, 100, 250, 500))
        call_id, decision = await door.admit(app, tokens=size)
        now = clock.now
        minute = [entry for entry in log if entry[0] > now - 60]
        day = [entry for entry in log if entry[0] > now - 86_400]
        if isinstance(decision, Admitted):
            assert len(minute) + 1 <= per_minute
            assert len(day) + 1 <= per_day
            assert sum(entry[1] for entry in minute) + size <= tokens_per_minute
            log.append([now, size])
            running[call_id] = log[-1]
        else:
            refused += 1
            assert isinstance(decision, Refused)
            # Refused only for what the buckets, one longer than the window, still hold.
            minute = [entry for entry in log if entry[0] > now - 61.001]
            day = [entry for entry in log if entry[0] > now - 86_400 - 900.001]
            assert (
                len(minute) >= per_minute
                or len(day) >= per_day
                or sum(entry[1] for entry in minute) + size > tokens_per_minute
            )
    assert refused > 20
    assert len(log) > 50


async def test_a_burst_from_many_calls_at_once_stops_at_the_limit(door: Gate) -> None:
    app = an_app(requests(10), tokens(200_000_000_000))
    outcomes = await asyncio.gather(*(door.admit(app, tokens=1) for _ in range(50)))
    assert sum(isinstance(decision, Admitted) for _, decision in outcomes) == 10


async def test_limits_of_trillions_are_counted_to_the_last_token(door: Gate) -> None:
    app = an_app(tokens(9_000_000_000_000_000))
    await door.admitted(app, tokens=8_999_999_999_999_999)
    await door.refused(app, tokens=2)
    _, decision = await door.admit(app, tokens=1)
    assert isinstance(decision, Admitted)
    assert header(decision, "remaining-tokens") == "0"
    assert header(decision, "limit-tokens") == "9000000000000000"


async def test_the_day_is_kept_in_buckets_that_leave_after_a_day(door: Gate, clock: SetClock) -> None:
    app = an_app(tokens(1000, "day"))
    early = await door.admitted(app, tokens=600)
    await clock.advance(door.client, 40_000)
    await door.admitted(app, tokens=400)
    await door.settle(early, tokens=200)
    await door.refused(app, tokens=401)
    await door.admitted(app, tokens=400)
    await clock.advance(door.client, 86_400 - 40_000 - 1)
    await door.refused(app, tokens=1)
    await clock.advance(door.client, 901)
    await door.admitted(app, tokens=200)
    await door.refused(app, tokens=1)
