"""What was used and charged: sums (from the day rollup only) and the latest calls."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

import asyncpg

By: TypeAlias = Literal["app", "model", "day"]

_GROUPS: dict[By, str] = {
    "app": "coalesce(organisations.name || '/' || apps.name, days.app_id::text)",
    "model": "days.model",
    "day": "days.day::text",
}
_ORDERS: dict[By, str] = {"app": "spend DESC, 1, 2", "model": "spend DESC, 1, 2", "day": "1, 2"}


@dataclass(frozen=True, slots=True)
class Spend:
    """One line of a sum; `what`: an app (ORG/APP), a model or a day (UTC); `spend` in the currency, exact."""

    what: str
    currency: str
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    spend: Decimal


@dataclass(frozen=True, slots=True)
class Call:
    """A usage row with names for ids; durations in microseconds, amounts in the currency."""

    id: str
    admitted_at: datetime
    app: str
    key_id: str
    end_user: str | None
    model: str
    version: str | None
    replica: str | None
    endpoint: str
    stream: bool
    outcome: str
    status: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    usage_source: str
    charge: Decimal
    currency: str
    prompt_price: Decimal | None
    completion_price: Decimal | None
    cache: str
    flags: list[str]
    first_byte_us: int | None
    duration_us: int
    error_code: str | None


async def spend(connection: asyncpg.Connection, by: By, app_id: str | None = None) -> list[Spend]:
    """Spend so far by app, model or day, of all apps or of one; days in order, else the largest first."""
    query = f"""
        SELECT {_GROUPS[by]} AS what, days.currency, sum(days.calls)::bigint AS calls,
               sum(days.prompt_tokens)::bigint AS prompt_tokens,
               sum(days.cached_tokens)::bigint AS cached_tokens,
               sum(days.completion_tokens)::bigint AS completion_tokens, sum(days.charge) AS spend
        FROM usage_days AS days
        LEFT JOIN apps ON apps.id = days.app_id
        LEFT JOIN organisations ON organisations.id = days.organisation_id
        WHERE $1::uuid IS NULL OR days.app_id = $1
        GROUP BY 1, 2 ORDER BY {_ORDERS[by]}
        """  # noqa: S608 - the parts are this module's own words
    return [Spend(*row) for row in await connection.fetch(query, app_id)]


async def latest_calls(connection: asyncpg.Connection, last: int, app_id: str | None = None) -> list[Call]:
    """The `last` calls that were admitted, the newest first: from the newest month back, not a whole scan."""
    rows = await connection.fetch(
        """
        SELECT usage.id::text, usage.admitted_at,
               coalesce(organisations.name || '/' || apps.name, usage.app_id::text) AS app,
               usage.key_id::text, usage.end_user, usage.model, versions.name AS version,
               replicas.name AS replica, usage.endpoint, usage.stream, usage.outcome, usage.status,
               usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
               usage.usage_source, usage.charge, usage.currency, prices.prompt AS prompt_price,
               prices.completion AS completion_price, usage.cache, usage.flags, usage.first_byte_us,
               usage.duration_us, usage.error_code
        FROM usage
        LEFT JOIN apps ON apps.id = usage.app_id
        LEFT JOIN organisations ON organisations.id = usage.organisation_id
        LEFT JOIN versions ON versions.id = usage.version_id
        LEFT JOIN replicas ON replicas.id = usage.replica_id
        LEFT JOIN prices ON prices.id = usage.price_id
        WHERE $2::uuid IS NULL OR usage.app_id = $2
        ORDER BY usage.id DESC LIMIT $1
        """,
        last,
        app_id,
    )
    return [Call(*row) for row in rows]
