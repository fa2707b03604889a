"""The matching of calls with the books finds what it is there to find."""

from decimal import Decimal
from typing import Any

import pytest

from tests.prove.traffic import books
from tests.prove.traffic.books import Books, Row
from tests.prove.traffic.caller import Ask, Ending, Told

PRICE = {"prompt": Decimal("0.1"), "cached_prompt": Decimal("0.1"), "completion": Decimal("0.4")}
DUE = Decimal("0.7")  # for 3 tokens of prompt and 1 of answer


def told(ending: Ending, **more: Any) -> Told:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    return Told(Ask("call", "Hi", 4), ending, **({"id": "1", "status": 200, "usage": usage} | more))


def row(**more: Any) -> Row:
    name = "host-7-1764500000000000-000001.journal"
    known = {"id": "1", "end_user": "call", "outcome": "completed", "cache": "off", "charge": DUE}
    return known | {"price_id": "p", "journal": name} | more


def kept(*rows: Row, charges: int = 1) -> Books:
    found = {each["id"]: [{"amount": each["charge"]}] * charges for each in rows if charges}
    return Books({each["id"]: each for each in rows}, found, {}, {"p": PRICE})


@pytest.mark.parametrize(
    ("call", "there", "claim"),
    [
        (told("whole"), kept(), books.WHOLE_ONCE),
        (told("whole"), kept(row(), charges=0), books.WHOLE_ONCE),
        (told("whole"), kept(row(outcome="engine_failed")), books.WHOLE_ONCE),
        (told("whole", headers={"x-cache": "hit"}), kept(row()), books.WHOLE_ONCE),
        (told("whole"), kept(row(charge=Decimal("0.8"))), books.EXACT),
        (told("whole"), kept(row(), charges=2), books.NEVER_TWICE),
        (told("no reply", id=None), kept(row(), row(id="2"), charges=0), books.NEVER_TWICE),
        (told("refused", status=503), kept(row()), books.ERRORS_FREE),
        (told("error event"), kept(row()), books.ERRORS_FREE),
        (told("not connected", id=None), kept(row()), books.ERRORS_FREE),
        (told("broken off"), kept(row()), books.EXPLAINED),
        (told("broken off"), kept(), books.BEGUN_ONCE),
        (told("whole"), kept(row(), row(id="2", end_user="other")), books.ONLY_OURS),
        (told("whole", id="3"), kept(row()), books.ONLY_OURS),
    ],
)
def test_a_fault_is_found(call: Told, there: Books, claim: str) -> None:
    assert claim in books.match([call], there).faults


@pytest.mark.parametrize(
    ("call", "there"),
    [
        (told("whole"), kept(row())),
        (told("whole", headers={"x-cache": "hit"}), kept(row(cache="hit", charge=Decimal(0)), charges=0)),
        (told("left"), kept(row(outcome="caller_left"))),
        (told("refused", status=503, id="9"), kept()),
        (told("broken off"), kept(row(outcome="interrupted"), charges=0)),
        (told("no reply", id=None), kept()),
    ],
)
def test_what_is_right_is_no_fault(call: Told, there: Books) -> None:
    assert books.match([call], there).faults == {}


def test_a_charge_of_a_process_that_was_killed_before_its_last_bytes_went_out_is_explained() -> None:
    found = books.match([told("broken off")], kept(row()), killed={7})
    assert found.faults == {}
    assert found.explained.total() == 1
