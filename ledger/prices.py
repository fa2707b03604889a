"""What a token costs: the price book, with effective dates. A call keeps the price of its admission.

Prices are exact: an int counts 1e-12 of the currency per token, so no charge ever rounds.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg

from ledger.errors import BadAmount, PriceExists
from ledger.money import check_currency, from_numeric, parse_amount, to_numeric

LARGEST_PRICE = 10**18  # units per token: a million of the currency


@dataclass(frozen=True, slots=True)
class Price:
    """One line of the price book; the three prices are in 1e-12 of the currency per token."""

    id: str
    model: str
    currency: str
    prompt: int
    cached_prompt: int
    completion: int
    effective_us: int = 0  # in force from then on, microseconds since the epoch

    def charge(self, prompt: int, cached: int, completion: int) -> int:
        """Units for a call's tokens; `cached` is the part of `prompt` that was in the engine's prefix cache.

        Absurd counts never credit: below 0 counts as 0, more cached than read counts as all cached.
        """
        if not 0 <= cached <= prompt or completion < 0:
            prompt = max(prompt, 0)
            cached = min(max(cached, 0), prompt)
            completion = max(completion, 0)
        return (prompt - cached) * self.prompt + cached * self.cached_prompt + completion * self.completion

    def bound(self, prompt_bound: int, choices: int, cap: int) -> int:
        """The most that a call can cost: price x (prompt bound + choices x cap on each one's output)."""
        return prompt_bound * max(self.prompt, self.cached_prompt) + choices * cap * self.completion


class PriceBook:
    """All prices, by model and date."""

    __slots__ = ("_by_model",)

    def __init__(self, prices: Iterable[Price]) -> None:
        dated: dict[str, list[Price]] = {}
        for price in prices:
            dated.setdefault(price.model, []).append(price)
        self._by_model: dict[str, tuple[list[int], list[Price]]] = {}
        for model, its in dated.items():
            its.sort(key=lambda price: price.effective_us)
            self._by_model[model] = ([price.effective_us for price in its], its)

    def at(self, model: str, now_us: int) -> Price | None:
        """The price in force at `now_us` (microseconds since the epoch); None when the model has none yet."""
        found = self._by_model.get(model)
        if found is None:
            return None
        starts, prices = found
        at = bisect_right(starts, now_us)
        return prices[at - 1] if at else None

    def __len__(self) -> int:
        return sum(len(prices) for _, prices in self._by_model.values())


async def load_prices(connection: asyncpg.Connection) -> PriceBook:
    """The whole price book, future prices included."""
    return PriceBook(await list_prices(connection))


async def list_prices(connection: asyncpg.Connection, model: str | None = None) -> list[Price]:
    """By model, then the newest date last."""
    rows = await connection.fetch(
        "SELECT id, model, currency, prompt, cached_prompt, completion, effective_from FROM prices "
        "WHERE $1::text IS NULL OR model = $1 ORDER BY model, effective_from",
        model,
    )
    return [_price(row) for row in rows]


async def set_price(
    connection: asyncpg.Connection,
    *,
    model: str,
    prompt: str,
    completion: str,
    cached_prompt: str | None = None,
    currency: str = "USD",
    effective_from: datetime | None = None,
) -> Price:
    """Adds a price; calls admitted before `effective_from` (now, when None) keep the one they had.

    Amounts are decimal text per token; `cached_prompt` is `prompt` when None. Raises BadAmount, BadCurrency,
    and PriceExists when the model has a price from that very moment on.
    """
    units = [
        per_token(text) for text in (prompt, prompt if cached_prompt is None else cached_prompt, completion)
    ]
    try:
        row = await connection.fetchrow(
            "INSERT INTO prices (model, currency, prompt, cached_prompt, completion, effective_from) "
            "VALUES ($1, $2, $3, $4, $5, coalesce($6, now())) "
            "RETURNING id, model, currency, prompt, cached_prompt, completion, effective_from",
            model,
            check_currency(currency),
            *map(to_numeric, units),
            effective_from,
        )
    except asyncpg.UniqueViolationError:
        raise PriceExists(
            f"{model} has a price from {effective_from} on already, and a price is never changed: set one "
            "from another time on."
        ) from None
    return _price(row)


def per_token(text: str) -> int:
    """Units of a price per token. Raises BadAmount."""
    units = parse_amount(text)
    if units >= LARGEST_PRICE:
        raise BadAmount(f"{text} per token is too much: prices are per token, below a million.")
    return units


def _price(row: Any) -> Price:
    since = row["effective_from"].astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return Price(
        id=str(row["id"]),
        model=row["model"],
        currency=row["currency"],
        prompt=from_numeric(row["prompt"]),
        cached_prompt=from_numeric(row["cached_prompt"]),
        completion=from_numeric(row["completion"]),
        effective_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds,
    )
