"""Who may call: keys by digest, with their app's limits and budgets, as every call reads them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Literal, cast

import asyncpg

from ledger.money import from_numeric

PAGE = 500  # rows decoded between two turns of the event loop, so that a large directory stalls no stream

Subject = Literal["app", "end_user"]
What = Literal["requests", "tokens", "concurrency"]
Window = Literal["minute", "day", "none"]
Period = Literal["total", "day", "month"]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` requests, tokens or concurrent calls per window, by the subject."""

    subject: Subject
    what: What
    window: Window
    value: int


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `amount` (1e-12 of the currency) spent and held per period; a soft one only says so."""

    subject: Subject
    period: Period
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


# One row holds all that a key opens. Limits and budgets come as text: most apps have the same ones, which are
# then read once and shared. The keys are chosen first, so that each page is a walk along an index.
KEYS = """
    SELECT k.id::text, k.digest, array_to_string(k.scopes, ' ') AS scopes,
           (extract(epoch FROM k.expires_at) * 1000000)::bigint AS expires_us,
           k.app_id::text, a.organisation_id::text, a.name AS app,
           a.revoked_at IS NULL AND o.revoked_at IS NULL AS live,
           (SELECT string_agg(concat_ws(' ', subject, what, "window", value), ','
                              ORDER BY subject, what, "window")
            FROM limits WHERE app_id = k.app_id) AS limits,
           (SELECT string_agg(concat_ws(' ', subject, period, amount, currency, hard), ','
                              ORDER BY subject, period)
            FROM budgets WHERE app_id = k.app_id) AS budgets
    FROM ({keys}) k
    LEFT JOIN apps a ON a.id = k.app_id
    LEFT JOIN organisations o ON o.id = a.organisation_id
    ORDER BY k.id
"""
PAGE_OF_KEYS = KEYS.format(
    keys="""
        SELECT * FROM api_keys
        WHERE id > $1::text::uuid AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
        ORDER BY id LIMIT $2
    """
)
SOME_KEYS = KEYS.format(
    keys="""
        SELECT * FROM api_keys
        WHERE digest = ANY($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
    """
)
BEFORE_ALL = "00000000-0000-0000-0000-000000000000"
REVOKED = """
    SELECT k.digest
    FROM api_keys k
    LEFT JOIN apps a ON a.id = k.app_id
    LEFT JOIN organisations o ON o.id = a.organisation_id
    WHERE greatest(k.revoked_at, a.revoked_at, o.revoked_at) > now() - make_interval(secs => $1)
"""


async def load_directory(
    connection: asyncpg.Connection, between: Callable[[dict[bytes, Access]], Awaitable[None]] | None = None
) -> Directory:
    """The directory as it stands in the database, read page by page.

    Each page is a statement of its own, so that news comes in meanwhile; `between` is called after each
    with what was read so far, which it may change. A change during the load is announced like any other.
    """
    reader = _Reader()
    last = BEFORE_ALL
    while rows := await connection.fetch(PAGE_OF_KEYS, last, PAGE):
        for row in rows:
            reader.read(row)
        if between is not None:
            await between(reader.accesses)
        last = rows[-1]["id"]
    return Directory(reader.accesses)


async def load_accesses(connection: asyncpg.Connection, digests: Sequence[bytes]) -> dict[bytes, Access]:
    """The accesses of some keys by digest; keys that are unknown, revoked or expired are left out."""
    reader = _Reader()
    for row in await connection.fetch(SOME_KEYS, digests):
        reader.read(row)
    return reader.accesses


async def load_revoked(connection: asyncpg.Connection, seconds: float) -> list[bytes]:
    """The digests of keys that were revoked in the last so many seconds, alone or with their owners."""
    return [row["digest"] for row in await connection.fetch(REVOKED, seconds)]


class _Reader:
    """Makes values of rows, equal ones once."""

    def __init__(self) -> None:
        self.accesses: dict[bytes, Access] = {}
        self._apps: dict[str, App] = {}
        self._scopes: dict[str, frozenset[str]] = {}
        self._limits: dict[str | None, tuple[Limit, ...]] = {None: ()}
        self._budgets: dict[str | None, tuple[Budget, ...]] = {None: ()}

    def read(self, row: asyncpg.Record) -> None:
        if not row["live"]:
            return
        scopes = self._scopes.get(row["scopes"])
        if scopes is None:
            scopes = self._scopes[row["scopes"]] = frozenset(row["scopes"].split())
        app = None
        if row["app_id"] is not None:
            app = self._apps.get(row["app_id"])
            if app is None:
                app = self._apps[row["app_id"]] = self._app(row)
        self.accesses[row["digest"]] = Access(row["id"], app, scopes, row["expires_us"])

    def _app(self, row: asyncpg.Record) -> App:
        limits = self._limits.get(row["limits"])
        if limits is None:
            limits = self._limits[row["limits"]] = tuple(map(_limit, row["limits"].split(",")))
        budgets = self._budgets.get(row["budgets"])
        if budgets is None:
            budgets = self._budgets[row["budgets"]] = tuple(map(_budget, row["budgets"].split(",")))
        return App(row["app_id"], row["organisation_id"], row["app"], limits, budgets)


def _limit(text: str) -> Limit:
    subject, what, window, value = text.split()
    return Limit(cast("Subject", subject), cast("What", what), cast("Window", window), int(value))


def _budget(text: str) -> Budget:
    subject, period, amount, currency, hard = text.split()
    return Budget(
        cast("Subject", subject), cast("Period", period), from_numeric(Decimal(amount)), currency, hard == "t"
    )
