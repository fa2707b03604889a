import os
import re
from datetime import UTC, datetime

import pytest

from ledger import ids
from ledger.ids import IdSource, month_of, new_id, time_ms

CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def ms_of(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 1000  # type: ignore[arg-type, misc]


def test_an_id_is_a_canonical_uuid_of_version_7_that_carries_the_time() -> None:
    before = datetime.now(UTC).timestamp() * 1000 - 1
    made = new_id()
    assert CANONICAL.fullmatch(made)
    assert before <= time_ms(made) <= datetime.now(UTC).timestamp() * 1000 + 1


def test_ids_of_one_process_grow_and_never_repeat() -> None:
    made = [new_id() for _ in range(50_000)]
    assert made == sorted(set(made))


def test_ids_grow_also_when_the_clock_steps_back_or_stands_still() -> None:
    source = IdSource()
    made = [source.next(ms) for ms in [1_000_000, 999_000, *[1_000_000] * 10_000, 5, 1_000_001]]
    assert made == sorted(set(made))
    assert all(CANONICAL.fullmatch(id) for id in made)


def test_an_id_for_a_given_time_carries_exactly_that_time_also_when_it_lies_in_the_past() -> None:
    for ms in [1_700_000_000_000, 1_700_000_000_000, 1_600_000_000_000, 0]:
        assert time_ms(new_id(ms)) == ms
    assert len({new_id(1_700_000_000_000) for _ in range(20_000)}) == 20_000


def test_ids_of_a_given_time_do_not_hold_up_those_of_the_clock() -> None:
    new_id(ms_of(2099, 1, 1))
    assert time_ms(new_id()) < ms_of(2090, 1, 1)


def test_the_month_changes_at_midnight_utc_to_the_millisecond() -> None:
    turn = ms_of(2026, 1, 1)
    assert month_of(new_id(turn - 1)) == (2025, 12)
    assert month_of(new_id(turn)) == (2026, 1)


def test_an_id_that_no_clock_made_has_no_month() -> None:
    with pytest.raises(ValueError, match="carries no time"):
        month_of("not-an-id")
    with pytest.raises(ValueError, match="carries no time"):
        month_of("ffffffff-ffff-7000-8000-000000000000")


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    new_id()  # the parent has random digits in stock
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, ids.new_id()[-12:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 12).decode() != new_id()[-12:]
    os.close(read)
    os.close(write)
