from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.journal.records import (
    Attempt,
    CloseRecord,
    OpenRecord,
    UnreadableRecord,
    decode,
    encode_close,
    encode_open,
)
from tests.ledger.calls import attempt, closed, opened

LIMIT = 2040
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    end_user=st.none() | texts, model=texts, hold=st.integers(0, 10**38), bound=numbers, stream=st.booleans()
)
def test_an_open_comes_back_as_it_was_written(**fields: Any) -> None:
    call = opened()._replace(
        **{"prompt_bound" if name == "bound" else name: value for name, value in fields.items()}
    )
    assert decode(encode_open(call)) == call


@given(
    charge=st.integers(0, 10**38),
    prompt_tokens=numbers,
    error_code=st.none() | texts,
    flags=st.lists(texts, max_size=4),
)
def test_a_close_comes_back_as_it_was_written(**fields: Any) -> None:
    call = opened()
    close = closed(call, attempts=[attempt(call), attempt(call, kind="retry", replica_id=None)], **fields)
    assert decode(encode_close(close, LIMIT)) == close


def test_money_stays_an_exact_integer_beyond_what_a_float_or_64_bits_can_hold() -> None:
    for hold in [2**53 + 1, 2**63 - 1, 2**63, 10**37 + 1]:
        read = decode(encode_open(opened(hold=hold)))
        assert isinstance(read, OpenRecord)
        assert read.hold == hold
        assert type(read.hold) is int


def test_half_a_surrogate_in_a_name_does_not_lose_the_call() -> None:
    read = decode(encode_open(opened(end_user="a\ud83dz")))
    assert isinstance(read, OpenRecord)
    assert read.end_user == "a?z"


def test_a_nul_which_postgres_cannot_hold_is_replaced_when_read() -> None:
    read = decode(encode_open(opened(end_user="a\x00z", model="back\\u0000slash")))
    assert isinstance(read, OpenRecord)
    assert (read.end_user, read.model) == ("a�z", "back\\u0000slash")


def test_an_open_with_endless_names_is_cut_to_what_can_be_read_back() -> None:
    read = decode(encode_open(opened(end_user="u" * 1_000_000, hold=7)))
    assert isinstance(read, OpenRecord)
    assert read.end_user == "u" * 256
    assert read.hold == 7


def test_a_close_never_needs_more_room_than_was_reserved_and_keeps_its_charge() -> None:
    call = opened()
    many = [attempt(call, error_code="é" * 500) for _ in range(200)]
    close = closed(call, attempts=many, flags=["f" * 500] * 50, error_code="é" * 5000, charge=10**30)
    payload = encode_close(close, LIMIT)
    assert len(payload) <= LIMIT
    read = decode(payload)
    assert isinstance(read, CloseRecord)
    assert read.charge == 10**30
    assert "trimmed" in read.flags
    assert isinstance(read.attempts[0], Attempt)


@pytest.mark.parametrize(
    "payload",
    [b"", b"O", b"O\x02[]", b"X\x01[]", b"O\x01[]", b"O\x01{}", b"C\x01[1,2]", b"O\x01[", b"C\x01null"],
)
def test_what_is_no_record_of_this_version_is_named_so(payload: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode(payload)


def test_a_record_holds_no_float() -> None:
    payload = encode_close(closed(opened()), LIMIT)
    assert b"." not in payload.replace(b"smollm2", b"")
    assert Decimal(closed(opened()).charge).as_integer_ratio()[1] == 1
