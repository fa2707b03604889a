"""The rules for models, versions and replicas as people change them, by admin API, command line or `up`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from engine import repository
from engine.errors import DuplicateName, InvalidSetting, NotRegistered
from engine.registry import ENDPOINTS, KINDS, STATES, split_engine_url
from engine.repository import ModelRow, ReplicaRow, VersionRow

MODEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@+/-]{0,126}[A-Za-z0-9._:@+-])?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ENGINE_MODEL_MAX = 256  # characters
SLOTS_MAX = 4096
WEIGHT_MAX = 1_000_000
TOKENS_MAX = 10_000_000
NAMED_MAX = 10  # models that a refusal names

DEFAULT_VERSION = "v1"
DEFAULT_SLOTS = 16
DEFAULT_MAX_OUTPUT = 512  # tokens
# What an engine of a kind answers when nobody says otherwise.
DEFAULT_ENDPOINTS = {
    "light": ("chat/completions", "completions", "responses", "messages"),
    "vllm": ("chat/completions", "completions", "responses", "messages"),
    "openai": ("chat/completions", "completions"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One version of a model with its replicas, as one wish.

    model: the name callers use; engine_model: the name the engines know, None for the same. engine_urls:
    one replica each. context_length and default_max_output in tokens. endpoints None: DEFAULT_ENDPOINTS of
    the kind.
    """

    model: str
    engine_urls: Sequence[str]
    kind: str = "openai"
    engine_model: str | None = None
    version: str = DEFAULT_VERSION
    weight: int = 100
    slots: int = DEFAULT_SLOTS
    default_max_output: int = DEFAULT_MAX_OUTPUT
    context_length: int | None = None
    endpoints: Sequence[str] | None = None

    def checked_endpoints(self) -> tuple[str, ...]:
        """The endpoints in the order of ENDPOINTS. Raises InvalidSetting, for any field of the wish."""
        check_model(self.model, self.default_max_output, self.context_length)
        with _said_as(name="version"):
            check_version(self.version, self.weight)
        if not self.engine_urls:
            raise InvalidSetting("A model needs at least one engine address.", "engine_urls")
        for url in self.engine_urls:
            with _said_as(url="engine_urls"):
                check_replica(url, self.kind, self.engine_model or self.model, self.slots)
        if len({split_engine_url(url) for url in self.engine_urls}) != len(self.engine_urls):
            raise DuplicateName("An engine address was given twice; give each replica once.", "engine_urls")
        return check_endpoints(DEFAULT_ENDPOINTS[self.kind] if self.endpoints is None else self.endpoints)


async def add_model(connection: asyncpg.Connection, pool: Pool) -> ModelRow:
    """A new model with one version and its replicas. Raises DuplicateName when there is one of that name."""
    endpoints = pool.checked_endpoints()
    async with connection.transaction():
        try:
            async with connection.transaction():
                id = await repository.insert_model(
                    connection, pool.model, pool.default_max_output, pool.context_length, endpoints
                )
        except asyncpg.UniqueViolationError:
            raise DuplicateName(
                f"A model named '{pool.model}' exists already; remove it first or choose another name."
            ) from None
        version = await repository.insert_version(connection, id, pool.version, pool.weight)
        for number, url in enumerate(pool.engine_urls, 1):
            await _insert_replica(connection, version, f"r{number}", url, pool)
    return await find_model(connection, id)


async def put_model(connection: asyncpg.Connection, pool: Pool) -> ModelRow:
    """Makes the model and this version of it exactly what the pool says; other versions stay.

    Replicas are called r1, r2, … in the order of the addresses, so that the same wish changes nothing and
    another address at the same place keeps the replica's id.
    """
    endpoints = pool.checked_endpoints()
    async with connection.transaction():
        id = await repository.model_id(connection, id=None, name=pool.model)
        if id is None:
            return await add_model(connection, pool)  # in a transaction within this one
        await repository.update_model(connection, id, pool.default_max_output, pool.context_length, endpoints)
        version = await repository.version_named(connection, id, pool.version)
        if version is None:
            version_id = await repository.insert_version(connection, id, pool.version, pool.weight)
            known: dict[str, ReplicaRow] = {}
        else:
            version_id = version.id
            known = {replica.name: replica for replica in version.replicas}
            await repository.update_version(connection, version_id, pool.weight)
        for number, url in enumerate(pool.engine_urls, 1):
            replica = known.pop(f"r{number}", None)
            if replica is None:
                await _insert_replica(connection, version_id, f"r{number}", url, pool)
            else:
                await repository.update_replica(
                    connection,
                    replica.id,
                    url.strip(),
                    pool.kind,
                    pool.engine_model or pool.model,
                    pool.slots,
                    "ready",
                )
        for replica in known.values():
            await repository.delete_replica(connection, replica.id)
    return await find_model(connection, id)


async def find_model(connection: asyncpg.Connection, reference: str) -> ModelRow:
    """The model of that id or name. Raises NotRegistered."""
    id = await repository.model_id(connection, id=_id(reference), name=_text(reference))
    found = [] if id is None else await repository.models(connection, id)
    if not found:
        raise NotRegistered("There is no such model; list the models to see their names and ids.")
    return found[0]


async def require_model(connection: asyncpg.Connection, name: str, otherwise: str) -> None:
    """Raises NotRegistered, with the names there are, unless a model has this very name.

    otherwise: how the caller says that the model comes later, for the sentence.
    """
    names = await repository.model_names(connection)
    if name in names:
        return
    shown = ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")
    raise NotRegistered(
        f"There is no model of that name ({f'only {shown}' if names else 'none at all yet'}): correct it, or "
        f"say {otherwise} if the model comes later.",
        "model",
    )


async def remove_model(connection: asyncpg.Connection, reference: str) -> None:
    """Deletes the model with all its versions and replicas; calls that run go on. Raises NotRegistered."""
    async with connection.transaction():
        found = await repository.model_id(connection, id=_id(reference), name=_text(reference))
        if found is None:
            raise NotRegistered("There is no such model; list the models to see their names and ids.")
        await repository.delete_model(connection, found)


async def add_version(connection: asyncpg.Connection, model: str, name: str, weight: int = 100) -> VersionRow:
    """A new version without replicas. Raises NotRegistered, DuplicateName."""
    check_version(name, weight)
    async with connection.transaction():
        model_id = await repository.model_id(connection, id=_id(model), name=_text(model))
        if model_id is None:
            raise NotRegistered("There is no such model; list the models to see their names and ids.")
        if await repository.version_named(connection, model_id, name) is not None:
            raise DuplicateName(f"The model has a version named '{name}' already; choose another name.")
        return await _version(connection, await repository.insert_version(connection, model_id, name, weight))


async def change_version(connection: asyncpg.Connection, id: str, weight: int) -> VersionRow:
    """Another weight; 0 takes the version out of the choice. Raises NotRegistered."""
    async with connection.transaction():
        found = await _version(connection, id)
        check_version(found.name, weight)
        await repository.update_version(connection, found.id, weight)
        return await _version(connection, found.id)


async def remove_version(connection: asyncpg.Connection, id: str) -> None:
    """Deletes the version with its replicas; calls that run go on. Raises NotRegistered."""
    async with connection.transaction():
        found = await _version(connection, id)
        await repository.delete_version(connection, found.id)


async def add_replica(
    connection: asyncpg.Connection,
    version_id: str,
    *,
    url: str,
    kind: str = "openai",
    engine_model: str | None = None,
    slots: int = DEFAULT_SLOTS,
    name: str | None = None,
) -> ReplicaRow:
    """A new replica of a version, called r1, r2, … unless named. Raises NotRegistered, DuplicateName."""
    async with connection.transaction():
        version = await _version(connection, version_id)
        if engine_model is None:
            engine_model = (await find_model(connection, version.model_id)).name
        check_replica(url, kind, engine_model, slots)
        names = {replica.name for replica in version.replicas}
        if name is None:
            name = next(f"r{n}" for n in range(1, len(names) + 2) if f"r{n}" not in names)
        _check_name(name, "A replica's name")
        if name in names:
            raise DuplicateName(f"The version has a replica named '{name}' already; choose another name.")
        address = split_engine_url(url)
        if any(split_engine_url(replica.url) == address for replica in version.replicas):
            raise DuplicateName("The version has a replica at that address already.", "url")
        id = await repository.insert_replica(
            connection, version.id, name, url.strip(), kind, engine_model, slots
        )
        return await _replica(connection, id)


async def change_replica(
    connection: asyncpg.Connection, id: str, *, state: str | None = None, slots: int | None = None
) -> ReplicaRow:
    """Another state (ready, draining: no new calls, off) or number of slots. Raises NotRegistered."""
    async with connection.transaction():
        found = await _replica(connection, id)
        state = found.state if state is None else state
        slots = found.slots if slots is None else slots
        if state not in STATES:
            raise InvalidSetting(f"A replica's state must be one of: {', '.join(STATES)}.", "state")
        check_replica(found.url, found.kind, found.engine_model, slots)
        await repository.update_replica(
            connection, found.id, found.url, found.kind, found.engine_model, slots, state
        )
        return await _replica(connection, found.id)


async def remove_replica(connection: asyncpg.Connection, id: str) -> None:
    """Deletes the replica; calls that run on it go on. Raises NotRegistered."""
    async with connection.transaction():
        found = await _replica(connection, id)
        await repository.delete_replica(connection, found.id)


def check_model(name: str, default_max_output: int, context_length: int | None) -> None:
    """Raises InvalidSetting."""
    if MODEL_NAME.fullmatch(name) is None or "//" in name:
        raise InvalidSetting(
            "A model's name must be 1 to 128 letters, digits or . _ : @ + / -, a letter or digit first.",
            "name",
        )
    _check_range("default_max_output", default_max_output, 1, TOKENS_MAX)
    if context_length is not None:
        _check_range("context_length", context_length, 1, TOKENS_MAX)


def check_version(name: str, weight: int) -> None:
    """Raises InvalidSetting."""
    _check_name(name, "A version's name")
    _check_range("weight", weight, 0, WEIGHT_MAX)


def check_replica(url: str, kind: str, engine_model: str, slots: int) -> None:
    """Raises InvalidSetting."""
    split_engine_url(url)
    if kind not in KINDS:
        raise InvalidSetting(f"An engine's kind must be one of: {', '.join(KINDS)}.", "kind")
    if not 1 <= len(engine_model) <= ENGINE_MODEL_MAX or not engine_model.isprintable():
        raise InvalidSetting(
            f"The engine's name of the model must have 1 to {ENGINE_MODEL_MAX} printable characters.",
            "engine_model",
        )
    _check_range("slots", slots, 1, SLOTS_MAX)


def check_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """The endpoints in the order of ENDPOINTS. Raises InvalidSetting."""
    if not endpoints or not set(endpoints) <= set(ENDPOINTS):
        raise InvalidSetting(f"Endpoints must be out of: {', '.join(ENDPOINTS)}.", "endpoints")
    return tuple(endpoint for endpoint in ENDPOINTS if endpoint in endpoints)


@contextmanager
def _said_as(**fields: str) -> Iterator[None]:
    """What is wrong with a part is said of the field of the wish that held it: the part's field to that."""
    try:
        yield
    except InvalidSetting as error:
        raise InvalidSetting(str(error), fields.get(error.field, error.field)) from None


def _check_name(name: str, what: str) -> None:
    if NAME.fullmatch(name) is None:
        raise InvalidSetting(
            f"{what} must be 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first.",
            "name",
        )


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidSetting(f"{field} must lie between {least} and {most}.", field)


async def _insert_replica(
    connection: asyncpg.Connection, version_id: str, name: str, url: str, pool: Pool
) -> None:
    await repository.insert_replica(
        connection, version_id, name, url.strip(), pool.kind, pool.engine_model or pool.model, pool.slots
    )


async def _version(connection: asyncpg.Connection, id: str) -> VersionRow:
    known = _id(id)
    found = None if known is None else await repository.version(connection, known)
    if found is None:
        raise NotRegistered("There is no such version; list the models to see their versions' ids.")
    return found


async def _replica(connection: asyncpg.Connection, id: str) -> ReplicaRow:
    known = _id(id)
    found = None if known is None else await repository.replica(connection, known)
    if found is None:
        raise NotRegistered("There is no such replica; list the models to see their replicas' ids.")
    return found


def _id(reference: str) -> str | None:
    try:
        return str(UUID(reference))
    except ValueError:
        return None


def _text(reference: str) -> str:
    # What Postgres cannot hold as text names nothing.
    return reference if reference.isascii() and "\0" not in reference else ""
