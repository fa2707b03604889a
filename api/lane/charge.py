"""What a call costs: usage judged, and the close record made."""

from dataclasses import dataclass

from api.lane.usage import Usage
from ledger.prices import Price

NOTHING = Usage(0, 0, 0, 0)
# What was our fault or the engine's is not charged; its tokens stand in the row all the same.
CHARGED = frozenset(("completed", "caller_left"))


@dataclass(slots=True)
class Judged:
    """Usage that may be charged, and what was odd about what the engine said."""

    usage: Usage
    flags: list[str]


def judge(usage: Usage, prompt_bound: int, completion_bound: int) -> Judged:
    """Absurd usage never credits and never passes the hold: it is capped and flagged (docs/billing.md)."""
    prompt, cached, completion, reasoning = usage
    if 0 <= cached <= prompt <= prompt_bound and 0 <= reasoning <= completion <= completion_bound:
        return Judged(usage, [])
    flags = []
    if prompt < 0 or completion < 0 or cached < 0 or reasoning < 0:
        flags.append("usage_negative")
    if prompt > prompt_bound or completion > completion_bound:
        flags.append("usage_capped")
    prompt = min(max(prompt, 0), prompt_bound)
    completion = min(max(completion, 0), completion_bound)
    if cached > prompt or reasoning > completion:
        flags.append("usage_parts_capped")
    return Judged(
        Usage(prompt, min(max(cached, 0), prompt), completion, min(max(reasoning, 0), completion)),
        flags,
    )


def charge(price: Price, outcome: str, usage: Usage) -> int:
    """In units of 1e-12 of the price's currency."""
    if outcome not in CHARGED:
        return 0
    return price.charge(usage.prompt, usage.cached, usage.completion)
