"""What a start puts into the database: the model with its replicas, a price, an app to begin with, keys.

Every step finds what an earlier start has made. The keys themselves are kept in keys.json of the home (mode
0600), because the database has only their digests: so the same key works after a restart, and a database that
does not know them (another one, or they were revoked) gets new ones.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import asyncpg

from api.access import service
from api.errors import Conflict, NotFound
from engine import catalogue, repository
from engine.catalogue import Pool
from engine.registry import split_engine_url
from ledger.money import format_amount, parse_amount
from ledger.prices import load_prices, set_price
from tollgate.embedded.passwords import write_private
from tollgate.supervisor.options import EXAMPLE_PRICE, Price

ORGANISATION = "default"
APP = "default"
# Calls that we make ourselves are booked to an app of the house, not to anybody's.
HOUSE = "house"
CURRENCY = "USD"
TOKENS = 1_000_000  # that prices are named for
PROBE = "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of a home: of the first app, of the administrator, and for the probe of the house."""

    app: str
    admin: str
    probe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Whose keys they are, as ORGANISATION/APP. said: a line for each app that had to be another one."""

    app: str
    probe: str
    said: tuple[str, ...]


async def ensure_app(connection: asyncpg.Connection, organisation: str, app: str) -> str:
    """Make an organisation and its app where they are missing; returns ORGANISATION/APP.

    What was revoked stays so, for good: the next of 'default', 'default-2' and so on that is not is taken.
    """
    for name in _numbered(organisation):
        try:
            found = await service.find_organisation(connection, name)
        except NotFound:
            found = await service.create_organisation(connection, name)
        if found.revoked_at is None:
            organisation = name
            break
    for name in _numbered(app):
        try:
            known = await service.find_app(connection, f"{organisation}/{name}")
        except NotFound:
            known = await service.create_app(connection, organisation, name)
        if known.revoked_at is None:
            return f"{organisation}/{name}"
    raise AssertionError("names are endless")


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


async def ensure_owners(connection: asyncpg.Connection) -> Owners:
    """The apps that the keys are for."""
    found, said = [], []
    for organisation, app in ((ORGANISATION, APP), (HOUSE, PROBE)):
        try:
            owner = await ensure_app(connection, organisation, app)
        except Conflict:  # another starter on the same database was first
            owner = await ensure_app(connection, organisation, app)
        found.append(owner)
        if owner != f"{organisation}/{app}":
            said.append(f"The app '{organisation}/{app}' is revoked; '{owner}' takes its place.")
    return Owners(app=found[0], probe=found[1], said=tuple(said))


async def ensure_keys(connection: asyncpg.Connection, home: Path, owners: Owners) -> Keys:
    """The home's keys; new ones for those that this database does not know as working."""
    path = home / "keys.json"
    try:
        known = json.loads(path.read_text())
    except FileNotFoundError:
        known = {}
    values = {}
    for name, owner in (("app", owners.app), ("admin", None), ("probe", owners.probe)):
        key = known.get(name)
        if not isinstance(key, str) or not await _works(connection, key):
            key = (await service.create_key(connection, app=owner, name="tollgate up")).key
        values[name] = key
    if values != known:
        write_private(path, json.dumps(values, indent=2) + "\n")
    return Keys(**values)


async def _works(connection: asyncpg.Connection, key: str) -> bool:
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM api_keys k LEFT JOIN apps a ON a.id = k.app_id"
        " LEFT JOIN organisations o ON o.id = a.organisation_id"
        " WHERE k.digest = $1 AND (k.expires_at IS NULL OR k.expires_at > now())"
        " AND coalesce(k.revoked_at, a.revoked_at, o.revoked_at) IS NULL)",
        sha256(key.encode()).digest(),
    )
    return found


async def register(connection: asyncpg.Connection, pool: Pool, *, ours: bool) -> list[str]:
    """Make this start's model what the pool says; returns a line for each replica that was switched off.

    An earlier start may have run another model on an engine of its own. Nobody serves it now: its replicas
    on this machine are switched off where nobody listens, or where an engine of this start (ours: it started
    the pool's engines) does, which serves its own model only. They come back with the start that runs them.
    """
    await catalogue.put_model(connection, pool)
    lines = []
    taken = {split_engine_url(url) for url in pool.engine_urls} if ours else set()
    engine_model = pool.engine_model or pool.model
    for model in await repository.models(connection):
        if model.name == pool.model:
            continue
        for replica in (one for version in model.versions for one in version.replicas):
            other = split_engine_url(replica.url) in taken and replica.engine_model != engine_model
            if replica.state != "off" and (other or _is_dead_here(replica.url)):
                await catalogue.change_replica(connection, replica.id, state="off")
                lines.append(
                    f"{model.name}: nobody serves it at {replica.url}; that replica is switched off."
                )
    return lines


async def ensure_price(connection: asyncpg.Connection, model: str, wanted: Price | None) -> str:
    """Put the wanted price into the price book unless it holds already; returns what holds now, in words.

    wanted: None keeps what the book has, and takes EXAMPLE_PRICE where it has nothing.
    """
    held = (await load_prices(connection)).at(model, time.time_ns() // 1000)
    if wanted is None and held is None:
        wanted = EXAMPLE_PRICE
    if wanted is not None:
        prompt, completion = _per_token(wanted.prompt), _per_token(wanted.completion)
        same = held is not None and (held.prompt, held.cached_prompt, held.completion) == (
            prompt,
            prompt,
            completion,
        )
        if not same or held is None or held.currency != CURRENCY:
            held = await set_price(
                connection,
                model=model,
                prompt=format_amount(prompt),
                completion=format_amount(completion),
                currency=CURRENCY,
            )
    assert held is not None
    if held.prompt == held.completion == 0:
        return "free"
    prompt_text, completion_text = (format_amount(each * TOKENS) for each in (held.prompt, held.completion))
    text = f"{prompt_text} {held.currency} per million prompt tokens, {completion_text} per million answered"
    is_example = (held.prompt, held.completion) == (
        _per_token(EXAMPLE_PRICE.prompt),
        _per_token(EXAMPLE_PRICE.completion),
    )
    return f"{text} (an example: set yours with --price, or --free)" if is_example else text


def _per_token(per_million: Decimal) -> int:
    return parse_amount(per_million / TOKENS)


def _is_dead_here(url: str) -> bool:
    host, port, _ = split_engine_url(url)
    if host not in {"127.0.0.1", "localhost", "::1"}:
        return False
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return True
    return False
