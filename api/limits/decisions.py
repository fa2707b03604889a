"""What is asked of the limiter and what it answers."""

from dataclasses import dataclass, field

from api.access.directory import App

RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
INSUFFICIENT_QUOTA = "insufficient_quota"


@dataclass(slots=True)
class Reservation:
    """What one call may use at most.

    tokens: prompt bound + all output that is allowed. hold: price of that, in 1e-12 of the currency.
    output_tokens: the part of `tokens` that the caller's max_tokens sets (choices x cap), choices: n, and
    completion_price: 1e-12 per token; a refusal says by these which max_tokens would pass (0: it does not).
    """

    call_id: str
    app: App
    end_user: str | None
    tokens: int
    hold: int
    currency: str
    output_tokens: int = 0
    choices: int = 1
    completion_price: int = 0


@dataclass(slots=True)
class Admitted:
    """The call may run; it holds its slot and its money until it is settled.

    headers: x-ratelimit-* as whole header lines.
    """

    headers: bytes = b""


@dataclass(frozen=True, slots=True)
class Refused:
    """The call may not run, and nothing of it was counted.

    code: rate_limit_exceeded or insufficient_quota. retry_after_s: whole seconds until it may pass, None when
    waiting does not help; should_retry: for x-should-retry, False where the caller must act first.
    headers: as in Admitted.
    """

    code: str
    message: str
    retry_after_s: int | None
    should_retry: bool | None
    headers: bytes = b""
    status: int = field(default=429, init=False)


@dataclass(frozen=True, slots=True)
class LimitsUnavailable:
    """Nobody can say whether the call is within its limits: 503, never a 429 and never a pass."""

    message: str = "Limits cannot be checked at the moment; try again shortly."
    retry_after_s: int = 1
    status: int = field(default=503, init=False)


Decision = Admitted | Refused | LimitsUnavailable
