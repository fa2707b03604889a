"""The rules of access: what may be created, listed and revoked, from the admin API and the command line.

Things are named by id or by name: an organisation 'ORG', an app 'ORG/APP', a key by its id or its first 8
characters. Errors are those of `api/errors.py`; their messages serve both.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar
from uuid import UUID

import asyncpg

from api.access import repository
from api.access.directory import Limit
from api.access.keys import make_key
from api.access.repository import AppRow, BudgetRow, KeyRow, Organisation
from api.errors import Conflict, InvalidRequest, NotFound, quoted
from ledger.ids import new_id

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
KEY_NAME_MAX = 64  # characters
APP_SCOPES = frozenset({"chat"})
ADMIN_SCOPES = frozenset({"admin"})
PAGE_MAX = 1001  # rows: a page of the admin API and one more

# A fresh app is limited from its first call on, by rules too high to refuse anybody: every part is at work
# at once, and an operator only lowers numbers.
FRESH_LIMITS = (
    Limit("app", "requests", "minute", 1_000_000),
    Limit("app", "tokens", "minute", 1_000_000_000),
    Limit("app", "concurrency", "none", 10_000),
)
FRESH_BUDGETS = (BudgetRow("app", "total", Decimal("1000000.00"), "USD", hard=True),)


Row = TypeVar("Row", Organisation, AppRow, KeyRow)


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key just made: `key` is shown to its owner once and known nowhere afterwards."""

    row: KeyRow
    key: str = field(repr=False)


async def create_organisation(connection: asyncpg.Connection, name: str) -> Organisation:
    """A new organisation. Raises Conflict when the name is taken."""
    _check_name(name, "An organisation's name")
    try:
        await repository.insert_organisation(connection, new_id(), name)
    except asyncpg.UniqueViolationError:
        raise Conflict(
            f"An organisation named '{name}' exists already; choose another name.", "name"
        ) from None
    return await find_organisation(connection, name)


async def create_app(connection: asyncpg.Connection, organisation: str, name: str) -> AppRow:
    """A new app with FRESH_LIMITS and FRESH_BUDGETS. Raises Conflict when the name is taken."""
    _check_name(name, "An app's name")
    owner = await find_organisation(connection, organisation)
    if owner.revoked_at is not None:
        raise Conflict(
            f"The organisation '{owner.name}' is revoked; it gets no new apps.", "organisation", "revoked"
        )
    id = new_id()
    async with connection.transaction():
        try:
            async with connection.transaction():
                await repository.insert_app(connection, id, owner.id, name)
        except asyncpg.UniqueViolationError:
            raise Conflict(
                f"The organisation '{owner.name}' has an app named '{name}' already; choose another name.",
                "name",
            ) from None
        await repository.replace_limits(connection, id, FRESH_LIMITS)
        await repository.replace_budgets(connection, id, FRESH_BUDGETS)
    return await find_app(connection, id)


async def create_key(
    connection: asyncpg.Connection,
    *,
    app: str | None,
    name: str,
    scopes: Sequence[str] | None = None,
    expires_at: datetime | None = None,
) -> ShownKey:
    """A new key of an app, or without one an admin key.

    scopes: None for all that such a key may have: chat for an app's, admin for an admin's. expires_at: with
    a time zone, in the future.
    """
    if not name.strip() or len(name) > KEY_NAME_MAX or not name.isprintable():
        raise InvalidRequest(f"A key's name must have 1 to {KEY_NAME_MAX} printable characters.", "name")
    possible = ADMIN_SCOPES if app is None else APP_SCOPES
    chosen = possible if scopes is None else frozenset(scopes)
    if not chosen or not chosen <= possible:
        kind = "An admin key" if app is None else "An app's key"
        raise InvalidRequest(f"{kind} takes scopes out of: {', '.join(sorted(possible))}.", "scopes")
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= datetime.now(UTC)):
        raise InvalidRequest("expires_at must be a time in the future, with its time zone.", "expires_at")
    app_id = None
    if app is not None:
        owner = await find_app(connection, app)
        if owner.revoked_at is not None:
            raise Conflict(
                f"The app '{owner.organisation}/{owner.name}' is revoked; it gets no new keys.",
                "app",
                "revoked",
            )
        app_id = owner.id
    made = make_key()
    id = new_id()
    await repository.insert_key(
        connection, id, app_id, name.strip(), made.digest, made.prefix, sorted(chosen), expires_at
    )
    row = next(row for row in await repository.keys_like(connection, id=id, prefix="") if row.id == id)
    return ShownKey(row, made.key)


async def find_organisation(connection: asyncpg.Connection, reference: str) -> Organisation:
    """The organisation of that id or name. Raises NotFound."""
    found = await repository.organisation(connection, id=_id(reference), name=_text(reference))
    if found is None:
        raise NotFound(f"There is no organisation '{quoted(reference)}'.", "organization")
    return found


async def find_app(connection: asyncpg.Connection, reference: str) -> AppRow:
    """The app of that id, or of that name as 'ORG/APP'. Raises NotFound."""
    organisation, _, name = _text(reference).partition("/")
    found = await repository.app(connection, id=_id(reference), organisation=organisation, name=name)
    if found is None:
        raise NotFound(f"There is no app '{quoted(reference)}'; name it as ORG/APP or by its id.", "app")
    return found


async def find_key(connection: asyncpg.Connection, reference: str) -> KeyRow:
    """The key of that id or prefix. Raises NotFound, or Conflict when several live keys begin so."""
    found = await repository.keys_like(connection, id=_id(reference), prefix=_text(reference))
    live = [row for row in found if row.revoked_at is None]
    if len(live) > 1:
        raise Conflict("Several keys begin so; name the key by its id.", "key", "ambiguous")
    if not found:
        raise NotFound("There is no such key; name it by its id or its first 8 characters.", "key")
    return found[0]


async def list_organisations(
    connection: asyncpg.Connection, limit: int = PAGE_MAX, after: str | None = None
) -> list[Organisation]:
    """A page of organisations, oldest first, revoked ones too."""
    return await repository.organisations(connection, _page(limit), _after(after))


async def list_apps(
    connection: asyncpg.Connection,
    organisation: str | None = None,
    limit: int = PAGE_MAX,
    after: str | None = None,
) -> list[AppRow]:
    """A page of apps, oldest first, revoked ones too."""
    owner = None if organisation is None else (await find_organisation(connection, organisation)).id
    return await repository.apps(connection, owner, _page(limit), _after(after))


async def list_keys(
    connection: asyncpg.Connection, app: str | None = None, limit: int = PAGE_MAX, after: str | None = None
) -> list[KeyRow]:
    """A page of keys, oldest first, revoked ones too."""
    owner = None if app is None else (await find_app(connection, app)).id
    return await repository.keys(connection, owner, _page(limit), _after(after))


async def list_all_organisations(connection: asyncpg.Connection) -> list[Organisation]:
    """All of them, page after page."""
    return await _all(lambda after: list_organisations(connection, PAGE_MAX, after))


async def list_all_apps(connection: asyncpg.Connection, organisation: str | None = None) -> list[AppRow]:
    """All of them (of one organisation), page after page."""
    return await _all(lambda after: list_apps(connection, organisation, PAGE_MAX, after))


async def list_all_keys(connection: asyncpg.Connection, app: str | None = None) -> list[KeyRow]:
    """All of them (of one app), page after page."""
    return await _all(lambda after: list_keys(connection, app, PAGE_MAX, after))


async def revoke_organisation(connection: asyncpg.Connection, reference: str) -> Organisation:
    """Every key of every app of it stops working, for good. Doing it twice changes nothing."""
    found = await find_organisation(connection, reference)
    await repository.revoke_organisation(connection, found.id)
    return await find_organisation(connection, found.id)


async def revoke_app(connection: asyncpg.Connection, reference: str) -> AppRow:
    """Every key of it stops working, for good. Doing it twice changes nothing."""
    found = await find_app(connection, reference)
    await repository.revoke_app(connection, found.id)
    return await find_app(connection, found.id)


async def revoke_key(connection: asyncpg.Connection, reference: str) -> KeyRow:
    """The key stops working, for good. Doing it twice changes nothing."""
    found = await find_key(connection, reference)
    await repository.revoke_key(connection, found.id)
    return await find_key(connection, found.id)


async def limits_of(connection: asyncpg.Connection, app: str) -> list[Limit]:
    """The app's limits."""
    return await repository.limits_of(connection, (await find_app(connection, app)).id)


async def budgets_of(connection: asyncpg.Connection, app: str) -> list[BudgetRow]:
    """The app's budgets."""
    return await repository.budgets_of(connection, (await find_app(connection, app)).id)


async def replace_limits(connection: asyncpg.Connection, app: str, limits: Sequence[Limit]) -> list[Limit]:
    """Makes these the app's limits, all of them; none at all means no limits."""
    id = (await find_app(connection, app)).id
    if len({(limit.subject, limit.what, limit.window) for limit in limits}) != len(limits):
        raise InvalidRequest("Each subject, what and window may have one limit.", "limits")
    for limit in limits:
        if (limit.what == "concurrency") != (limit.window == "none"):
            raise InvalidRequest("Concurrency is limited with the window 'none', and only that.", "limits")
    async with connection.transaction():
        await repository.replace_limits(connection, id, limits)
    return await repository.limits_of(connection, id)


async def replace_budgets(
    connection: asyncpg.Connection, app: str, budgets: Sequence[BudgetRow]
) -> list[BudgetRow]:
    """Makes these the app's budgets, all of them; none at all means no budget."""
    id = (await find_app(connection, app)).id
    if len({(budget.subject, budget.period) for budget in budgets}) != len(budgets):
        raise InvalidRequest("Each subject and period may have one budget.", "budgets")
    async with connection.transaction():
        await repository.replace_budgets(connection, id, budgets)
    return await repository.budgets_of(connection, id)


async def _all(page: Callable[[str | None], Awaitable[list[Row]]]) -> list[Row]:
    found = await page(None)
    last = found
    while len(last) == PAGE_MAX:
        last = await page(last[-1].id)
        found += last
    return found


def _check_name(name: str, what: str) -> None:
    if NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{what} must be 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first.",
            "name",
        )


def _id(reference: str) -> str | None:
    try:
        return str(UUID(reference))
    except ValueError:
        return None


def _text(reference: str) -> str:
    # What Postgres cannot hold as text names nothing.
    return reference if reference.isascii() and "\0" not in reference else ""


def _after(after: str | None) -> str | None:
    if after is None:
        return None
    id = _id(after)
    if id is None:
        raise InvalidRequest("'after' must be an id from the page before.", "after")
    return id


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidRequest(f"'limit' must lie between 1 and {PAGE_MAX}.", "limit")
    return limit
