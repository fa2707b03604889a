"""Refusals in words: what was needed, what is left, and which max_tokens would pass."""

from api.limits.decisions import INSUFFICIENT_QUOTA, RATE_LIMIT_EXCEEDED, Refused, Reservation
from api.limits.plan import HOLD_MAX
from ledger.money import format_amount

_SUBJECTS = {b"app": "this app", b"user": "this end user"}
_UNITS = {b"total": "in total", b"day": "per day", b"month": "per month"}


def refused(reservation: Reservation, fields: list[bytes], headers: bytes, tokens_max: int | None) -> Refused:
    """From the admit script's reply: R what subject window limit used wait; B subject period used amount; N.

    tokens_max: the tokens of the smallest window, None without any.
    """
    if fields[0] == b"N":
        return _not_comparable(reservation, headers)
    if fields[0] == b"B":
        return _short(
            reservation, _SUBJECTS[fields[1]], _UNITS[fields[2]], int(fields[3]), int(fields[4]), headers
        )
    if tokens_max is not None and reservation.tokens > tokens_max:
        return _too_large(reservation, tokens_max, headers)
    _, what, subject, window, limit, used, wait = fields[:7]
    seconds, who = int(wait), _SUBJECTS[subject]
    if what == b"concurrency":
        message = (
            f"Too many calls at once: {who} may have {int(limit)} running, and they are. "
            "Call again when one of them has ended."
        )
    elif what == b"requests":
        message = (
            f"The limit of {int(limit)} requests per {window.decode()} for {who} is reached. "
            f"Call again in {seconds} s."
        )
    else:
        left = max(0, int(limit) - int(used))
        message = (
            f"This call may use up to {reservation.tokens} tokens, and {left} of the {int(limit)} per "
            f"{window.decode()} for {who} are left. Call again in {seconds} s"
            f"{_or_fewer(_fewer(reservation, left))}."
        )
    return Refused(RATE_LIMIT_EXCEEDED, message, seconds, None, headers)


def _too_large(reservation: Reservation, tokens_max: int, headers: bytes) -> Refused:
    """A call that needs more tokens than a whole window has: no waiting helps."""
    message = f"This call may use up to {reservation.tokens} tokens; the limit of this app is {tokens_max}."
    fewer = _fewer(reservation, tokens_max)
    message += f" A max_tokens of at most {fewer} would pass." if fewer else " Send a shorter prompt."
    return Refused(RATE_LIMIT_EXCEEDED, message, None, False, headers)


def _not_comparable(reservation: Reservation, headers: bytes) -> Refused:
    """A budget in another currency than the call's price, or a call beyond all budgets."""
    if reservation.hold > HOLD_MAX:
        message = (
            f"This call may cost up to {format_amount(reservation.hold)} {reservation.currency}; no call may "
            f"cost more than {format_amount(HOLD_MAX)}. Ask for a smaller max_tokens."
        )
    else:
        message = (
            f"This model is priced in {reservation.currency}, and this app's budget is in another currency."
        )
    return Refused(INSUFFICIENT_QUOTA, message, None, False, headers)


def _short(reservation: Reservation, who: str, unit: str, used: int, amount: int, headers: bytes) -> Refused:
    available = max(0, amount - used)
    currency = reservation.currency
    message = (
        f"The budget of {who} is short: this call may cost up to {format_amount(reservation.hold)} "
        f"{currency}, and {format_amount(available)} of {format_amount(amount)} {currency} {unit} "
        "is available."
    )
    per_token = reservation.choices * reservation.completion_price
    if per_token > 0 and reservation.output_tokens:
        prompt = reservation.hold - reservation.output_tokens * reservation.completion_price
        fits = (available - prompt) // per_token
        if fits >= 1:
            message += f" A max_tokens of at most {fits} would pass."
    return Refused(INSUFFICIENT_QUOTA, message, None, False, headers)


def _fewer(reservation: Reservation, left: int) -> int:
    """The largest max_tokens with which the call fits into `left` tokens; 0 when none does."""
    if not reservation.output_tokens:
        return 0
    return max(0, (left - (reservation.tokens - reservation.output_tokens)) // reservation.choices)


def _or_fewer(fewer: int) -> str:
    return f", or now with a max_tokens of at most {fewer}" if fewer else ""
