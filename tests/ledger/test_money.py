"""Amounts are exact or refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import BadAmount, BadCurrency
from ledger.money import UNIT, check_currency, format_amount, from_numeric, parse_amount, to_numeric


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0.0000015", 1_500_000),
        ("0.0000000375", 37_500),
        ("0.000000000001", 1),
        ("1", UNIT),
        ("1.50", 3 * UNIT // 2),
        ("1e-7", 100_000),
        ("0", 0),
        ("-0", 0),
        ("0.0000000000000000", 0),
        ("0.1000000000000000", UNIT // 10),
        ("12345678901234567890123456", 12345678901234567890123456 * UNIT),
    ],
)
def test_an_amount_is_read_to_the_last_digit(text: str, units: int) -> None:
    assert parse_amount(text) == units
    assert parse_amount(Decimal(text)) == units


@pytest.mark.parametrize(
    "text",
    ["0.0000000000001", "1.0000000000001", "1e-13", "1e-999999999", "-1", "-0.000001", "nan", "-inf", "inf",
     "sNaN", "", "one", "1,5", "1e26", "1e999999999", "0x10"],
)  # fmt: skip
def test_an_amount_that_cannot_be_exact_is_refused(text: str) -> None:
    with pytest.raises(BadAmount):
        parse_amount(text)


@pytest.mark.parametrize("value", [0.1, 1.0, True, None, b"1", float("nan")])
def test_a_float_is_refused_by_type_even_when_it_looks_exact(value: object) -> None:
    with pytest.raises(BadAmount):
        parse_amount(value)  # type: ignore[arg-type]


@given(st.integers(-(10**37), 10**37))
def test_an_amount_survives_the_way_to_the_database_and_to_people(units: int) -> None:
    assert from_numeric(to_numeric(units)) == units
    assert from_numeric(Decimal(format_amount(units))) == units


@pytest.mark.parametrize(
    ("units", "text"),
    [(0, "0"), (1, "0.000000000001"), (1_500_000, "0.0000015"), (UNIT, "1"), (-UNIT // 2, "-0.5"),
     (10 * UNIT, "10"), (123_450_000_000_000_000, "123450")],
)  # fmt: skip
def test_people_see_plain_decimals_without_idle_zeros(units: int, text: str) -> None:
    assert format_amount(units) == text


@pytest.mark.parametrize("code", ["usd", "US", "USDT", "U$D", "", "ÄÖÜ"])
def test_a_currency_is_three_capital_letters(code: str) -> None:
    assert check_currency("USD") == "USD"
    with pytest.raises(BadCurrency):
        check_currency(code)
