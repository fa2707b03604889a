"""Every query on organisations, apps, keys, limits and budgets.

The database itself announces each change on the channel `tollgate` (a trigger on these tables), in the
transaction that makes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import asyncpg

from api.access.directory import Limit


@dataclass(frozen=True, slots=True)
class Organisation:
    """A row of organisations."""

    id: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class AppRow:
    """A row of apps with its organisation's name; revoked_at: its own or its organisation's."""

    id: str
    organisation_id: str
    organisation: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key without its digest. app: 'ORG/APP', None for admin keys. revoked_at: its own or its app's."""

    id: str
    app_id: str | None
    app: str | None
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A row of budgets; amount in the currency."""

    subject: str
    period: str
    amount: Decimal
    currency: str
    hard: bool


ORGANISATIONS = "SELECT id::text, name, created_at, revoked_at FROM organisations o"
APPS = """
    SELECT a.id::text, o.id::text AS organisation_id, o.name AS organisation, a.name, a.created_at,
           least(a.revoked_at, o.revoked_at) AS revoked_at
    FROM apps a JOIN organisations o ON o.id = a.organisation_id
"""
KEYS = """
    SELECT k.id::text, k.app_id::text, o.name || '/' || a.name AS app, k.name, k.prefix, k.scopes,
           k.created_at, k.expires_at, least(k.revoked_at, a.revoked_at, o.revoked_at) AS revoked_at
    FROM api_keys k LEFT JOIN apps a ON a.id = k.app_id LEFT JOIN organisations o ON o.id = a.organisation_id
"""


async def insert_organisation(connection: asyncpg.Connection, id: str, name: str) -> None:
    """Raises asyncpg.UniqueViolationError when the name is taken."""
    await connection.execute("INSERT INTO organisations (id, name) VALUES ($1::text::uuid, $2)", id, name)


async def insert_app(connection: asyncpg.Connection, id: str, organisation_id: str, name: str) -> None:
    """Raises asyncpg.UniqueViolationError when the organisation has an app of that name."""
    await connection.execute(
        "INSERT INTO apps (id, organisation_id, name) VALUES ($1::text::uuid, $2::text::uuid, $3)",
        id,
        organisation_id,
        name,
    )


async def insert_key(
    connection: asyncpg.Connection,
    id: str,
    app_id: str | None,
    name: str,
    digest: bytes,
    prefix: str,
    scopes: Sequence[str],
    expires_at: datetime | None,
) -> None:
    """Stores a key's digest and prefix; the key itself is stored nowhere."""
    await connection.execute(
        "INSERT INTO api_keys (id, app_id, name, digest, prefix, scopes, expires_at)"
        " VALUES ($1::text::uuid, $2::text::uuid, $3, $4, $5, $6, $7)",
        id,
        app_id,
        name,
        digest,
        prefix,
        list(scopes),
        expires_at,
    )


async def replace_limits(connection: asyncpg.Connection, app_id: str, limits: Sequence[Limit]) -> None:
    """Makes these the app's limits, all of them."""
    await connection.execute("DELETE FROM limits WHERE app_id = $1::text::uuid", app_id)
    await connection.executemany(
        'INSERT INTO limits (app_id, subject, what, "window", value) VALUES ($1::text::uuid, $2, $3, $4, $5)',
        [(app_id, limit.subject, limit.what, limit.window, limit.value) for limit in limits],
    )


async def replace_budgets(connection: asyncpg.Connection, app_id: str, budgets: Sequence[BudgetRow]) -> None:
    """Makes these the app's budgets, all of them."""
    await connection.execute("DELETE FROM budgets WHERE app_id = $1::text::uuid", app_id)
    await connection.executemany(
        "INSERT INTO budgets (app_id, subject, period, amount, currency, hard)"
        " VALUES ($1::text::uuid, $2, $3, $4, $5, $6)",
        [(app_id, b.subject, b.period, b.amount, b.currency, b.hard) for b in budgets],
    )


async def organisation(connection: asyncpg.Connection, *, id: str | None, name: str) -> Organisation | None:
    """The organisation of that id, else of that name."""
    row = await connection.fetchrow(
        ORGANISATIONS
        + " WHERE id = $1::text::uuid OR name = $2 ORDER BY id = $1::text::uuid DESC NULLS LAST",
        id,
        name,
    )
    return None if row is None else Organisation(*row)


async def app(
    connection: asyncpg.Connection, *, id: str | None, organisation: str, name: str
) -> AppRow | None:
    """The app of that id, else of that name in that organisation."""
    row = await connection.fetchrow(
        APPS + " WHERE a.id = $1::text::uuid OR (o.name = $2 AND a.name = $3)"
        " ORDER BY a.id = $1::text::uuid DESC NULLS LAST",
        id,
        organisation,
        name,
    )
    return None if row is None else AppRow(*row)


async def keys_like(connection: asyncpg.Connection, *, id: str | None, prefix: str) -> list[KeyRow]:
    """The keys of that id or with that prefix, revoked ones last."""
    rows = await connection.fetch(
        KEYS + " WHERE k.id = $1::text::uuid OR k.prefix = $2 ORDER BY 9 NULLS FIRST, k.id", id, prefix
    )
    return [_key(row) for row in rows]


async def organisations(connection: asyncpg.Connection, limit: int, after: str | None) -> list[Organisation]:
    """At most `limit` organisations, oldest first, from behind the id `after`."""
    rows = await connection.fetch(
        ORGANISATIONS + " WHERE $2::text IS NULL OR o.id > $2::text::uuid ORDER BY o.id LIMIT $1",
        limit,
        after,
    )
    return [Organisation(*row) for row in rows]


async def apps(
    connection: asyncpg.Connection, organisation_id: str | None, limit: int, after: str | None
) -> list[AppRow]:
    """At most `limit` apps (of one organisation), oldest first, from behind the id `after`."""
    rows = await connection.fetch(
        APPS + " WHERE ($2::text IS NULL OR a.id > $2::text::uuid)"
        " AND ($3::text IS NULL OR a.organisation_id = $3::text::uuid) ORDER BY a.id LIMIT $1",
        limit,
        after,
        organisation_id,
    )
    return [AppRow(*row) for row in rows]


async def keys(
    connection: asyncpg.Connection, app_id: str | None, limit: int, after: str | None
) -> list[KeyRow]:
    """At most `limit` keys (of one app), oldest first, from behind the id `after`."""
    rows = await connection.fetch(
        KEYS + " WHERE ($2::text IS NULL OR k.id > $2::text::uuid)"
        " AND ($3::text IS NULL OR k.app_id = $3::text::uuid) ORDER BY k.id LIMIT $1",
        limit,
        after,
        app_id,
    )
    return [_key(row) for row in rows]


async def limits_of(connection: asyncpg.Connection, app_id: str) -> list[Limit]:
    """The app's limits."""
    rows = await connection.fetch(
        'SELECT subject, what, "window", value FROM limits WHERE app_id = $1::text::uuid'
        ' ORDER BY subject, what, "window"',
        app_id,
    )
    return [Limit(*row) for row in rows]


async def budgets_of(connection: asyncpg.Connection, app_id: str) -> list[BudgetRow]:
    """The app's budgets."""
    rows = await connection.fetch(
        "SELECT subject, period, amount, currency, hard FROM budgets WHERE app_id = $1::text::uuid"
        " ORDER BY subject, period",
        app_id,
    )
    return [BudgetRow(*row) for row in rows]


async def revoke_organisation(connection: asyncpg.Connection, id: str) -> None:
    """Marks it revoked from now on, unless it is."""
    await connection.execute(
        "UPDATE organisations SET revoked_at = now() WHERE id = $1::text::uuid AND revoked_at IS NULL", id
    )


async def revoke_app(connection: asyncpg.Connection, id: str) -> None:
    """Marks it revoked from now on, unless it is."""
    await connection.execute(
        "UPDATE apps SET revoked_at = now() WHERE id = $1::text::uuid AND revoked_at IS NULL", id
    )


async def revoke_key(connection: asyncpg.Connection, id: str) -> None:
    """Marks it revoked from now on, unless it is."""
    await connection.execute(
        "UPDATE api_keys SET revoked_at = now() WHERE id = $1::text::uuid AND revoked_at IS NULL", id
    )


def _key(row: asyncpg.Record) -> KeyRow:
    return KeyRow(
        row["id"],
        row["app_id"],
        row["app"],
        row["name"],
        row["prefix"],
        tuple(row["scopes"]),
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
    )
