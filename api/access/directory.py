"""Who may call: keys by digest, with their app's limits and budgets, as every call reads them."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import asyncpg

from ledger.money import from_numeric

PREFETCH = 500  # rows decoded between two turns of the event loop, so that a large directory stalls no stream

Subject = Literal["app", "end_user"]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` requests, tokens or concurrent calls per window, by the subject."""

    subject: Subject
    what: Literal["requests", "tokens", "concurrency"]
    window: Literal["minute", "day", "none"]
    value: int


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `amount` (1e-12 of the currency) spent and held per period; a soft one only says so."""

    subject: Subject
    period: Literal["total", "day", "month"]
    amount: int
    currency: str
    hard: bool


@dataclass(frozen=True, slots=True)
class App:
    """What a key belongs to, and what that may use."""

    id: str
    organisation_id: str
    name: str
    limits: tuple[Limit, ...]
    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a key opens. app: None for admin keys. expires_us: microseconds since the epoch, None = never."""

    key_id: str
    app: App | None
    scopes: frozenset[str]
    expires_us: int | None


@dataclass(slots=True)
class Directory:
    """All keys that are good now, by the sha256 of the whole key."""

    accesses: dict[bytes, Access] = field(default_factory=dict)

    def find(self, key: bytes) -> Access | None:
        """The access of a key as the caller sent it, or None when it is unknown, revoked or expired."""
        access = self.accesses.get(sha256(key).digest())
        if (
            access is not None
            and access.expires_us is not None
            and access.expires_us <= time.time_ns() // 1000
        ):
            return None
        return access


LIMITS = 'SELECT app_id::text, subject, what, "window", value FROM limits'
BUDGETS = "SELECT app_id::text, subject, period, amount, currency, hard FROM budgets"
APPS = "SELECT id::text, organisation_id::text, name FROM apps"
KEYS = """
    SELECT k.id::text, k.app_id::text, k.digest, k.scopes,
           (extract(epoch FROM k.expires_at) * 1000000)::bigint AS expires_us
    FROM api_keys k
    LEFT JOIN apps a ON a.id = k.app_id
    LEFT JOIN organisations o ON o.id = a.organisation_id
    WHERE k.revoked_at IS NULL AND a.revoked_at IS NULL AND o.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > now())
"""


async def load_directory(connection: asyncpg.Connection) -> Directory:
    """The directory as it stands in the database, all of one moment."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        apps = _apps(
            [row async for row in connection.cursor(APPS, prefetch=PREFETCH)],
            [row async for row in connection.cursor(LIMITS, prefetch=PREFETCH)],
            [row async for row in connection.cursor(BUDGETS, prefetch=PREFETCH)],
        )
        directory = Directory()
        async for row in connection.cursor(KEYS, prefetch=PREFETCH):
            directory.accesses[row["digest"]] = _access(row, apps)
        return directory


async def load_accesses(connection: asyncpg.Connection, digests: Sequence[bytes]) -> dict[bytes, Access]:
    """The accesses of some keys by digest; keys that are unknown, revoked or expired are left out."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        keys = await connection.fetch(KEYS + " AND k.digest = ANY($1)", digests)
        wanted = [row["app_id"] for row in keys if row["app_id"] is not None]
        if not wanted:
            apps: dict[str, App] = {}
        else:
            apps = _apps(
                await connection.fetch(APPS + " WHERE id = ANY($1::text[]::uuid[])", wanted),
                await connection.fetch(LIMITS + " WHERE app_id = ANY($1::text[]::uuid[])", wanted),
                await connection.fetch(BUDGETS + " WHERE app_id = ANY($1::text[]::uuid[])", wanted),
            )
    return {row["digest"]: _access(row, apps) for row in keys}


def _access(row: asyncpg.Record, apps: dict[str, App]) -> Access:
    app = None if row["app_id"] is None else apps[row["app_id"]]
    return Access(row["id"], app, frozenset(row["scopes"]), row["expires_us"])


def _apps(
    apps: Iterable[asyncpg.Record], limits: Iterable[asyncpg.Record], budgets: Iterable[asyncpg.Record]
) -> dict[str, App]:
    limits_of: dict[str, list[Limit]] = {}
    for row in limits:
        limit = Limit(row["subject"], row["what"], row["window"], row["value"])
        limits_of.setdefault(row["app_id"], []).append(limit)
    budgets_of: dict[str, list[Budget]] = {}
    for row in budgets:
        budget = Budget(
            row["subject"], row["period"], from_numeric(row["amount"]), row["currency"], row["hard"]
        )
        budgets_of.setdefault(row["app_id"], []).append(budget)
    return {
        row["id"]: App(
            row["id"],
            row["organisation_id"],
            row["name"],
            tuple(limits_of.get(row["id"], ())),
            tuple(budgets_of.get(row["id"], ())),
        )
        for row in apps
    }
