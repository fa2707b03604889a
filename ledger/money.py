"""Exact amounts: an int counts 1e-12 of a currency, people and JSON see decimals; a float is never used."""

from decimal import Decimal, InvalidOperation

from ledger.errors import BadAmount, BadCurrency

DECIMALS = 12
UNIT = 10**DECIMALS  # how many units make one of the currency
_LARGEST_EXPONENT = 26  # NUMERIC(38,12) holds 26 digits before the point


def parse_amount(text: str | Decimal | int) -> int:
    """Units of 1e-12 of a decimal amount such as "0.0000015". Raises BadAmount where it cannot be exact.

    A float is refused by type: 0.1 has been rounded before anyone could look at it.
    """
    if isinstance(text, bool) or not isinstance(text, (str, Decimal, int)):
        raise BadAmount(f"{text!r} is not an exact decimal amount: write it as text, such as 0.0000015.")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise BadAmount(f"{text!r} is not a decimal amount: write it like 0.0000015.") from None
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise BadAmount(f"{text} is not an amount.")
    if not any(digits):
        return 0
    if sign:
        raise BadAmount(f"{text} is negative: amounts are 0 or more.")
    if value.adjusted() >= _LARGEST_EXPONENT:
        raise BadAmount(
            f"{text} is too large: amounts have at most {_LARGEST_EXPONENT} digits before the point."
        )
    number = int("".join(map(str, digits)))
    shift = exponent + DECIMALS
    if shift >= 0:
        return number * int(10**shift)
    if shift < -len(digits):
        raise _too_fine(text)
    units, rest = divmod(number, int(10**-shift))
    if rest:
        raise _too_fine(text)
    return units


def _too_fine(text: object) -> BadAmount:
    return BadAmount(
        f"{text} has more than {DECIMALS} decimals: it would have to be rounded, and nothing here is."
    )


def to_numeric(units: int) -> Decimal:
    """For a NUMERIC(38,12) parameter; exact for any number of units."""
    return Decimal(format_amount(units))


def from_numeric(value: Decimal) -> int:
    """Units of a NUMERIC out of the database. Negative balances come out negative. Raises BadAmount."""
    return -parse_amount(value.copy_negate()) if value < 0 else parse_amount(value)


def format_amount(units: int) -> str:
    """The shortest plain decimal: 1500000 -> "0.0000015", 1500000000000 -> "1.5", 0 -> "0"."""
    whole, fraction = divmod(abs(units), UNIT)
    text = f"{whole}.{fraction:012d}".rstrip("0").rstrip(".") if fraction else str(whole)
    return f"-{text}" if units < 0 else text


def check_currency(code: str) -> str:
    """The code itself. Raises BadCurrency unless it is three capital letters (ISO 4217)."""
    if len(code) != 3 or not code.isascii() or not code.isalpha() or not code.isupper():
        raise BadCurrency(f"{code!r} is not a currency code: three capital letters, such as USD.")
    return code
