"""Every query on models, versions and replicas; ids are made by the database.

The database itself announces each change on the channel `tollgate` (a trigger on these tables), in the
transaction that makes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A row of replicas."""

    id: str
    version_id: str
    name: str
    url: str
    kind: str
    engine_model: str
    slots: int
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A row of versions with its replicas."""

    id: str
    model_id: str
    name: str
    weight: int
    created_at: datetime
    replicas: list[ReplicaRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A row of models with its versions."""

    id: str
    name: str
    default_max_output: int
    context_length: int | None
    endpoints: tuple[str, ...]
    created_at: datetime
    versions: list[VersionRow] = field(default_factory=list)


MODELS = "SELECT id::text, name, default_max_output, context_length, endpoints, created_at FROM models"
VERSIONS = "SELECT id::text, model_id::text, name, weight, created_at FROM versions"
REPLICAS = (
    "SELECT id::text, version_id::text, name, url, kind, engine_model, slots, state, created_at FROM replicas"
)


async def insert_model(
    connection: asyncpg.Connection,
    name: str,
    default_max_output: int,
    context_length: int | None,
    endpoints: Sequence[str],
) -> str:
    """The new model's id. Raises asyncpg.UniqueViolationError when the name is taken."""
    id: str = await connection.fetchval(
        "INSERT INTO models (name, default_max_output, context_length, endpoints) VALUES ($1, $2, $3, $4)"
        " RETURNING id::text",
        name,
        default_max_output,
        context_length,
        list(endpoints),
    )
    return id


async def insert_version(connection: asyncpg.Connection, model_id: str, name: str, weight: int) -> str:
    """The new version's id. Raises asyncpg.UniqueViolationError when the model has one of that name."""
    id: str = await connection.fetchval(
        "INSERT INTO versions (model_id, name, weight) VALUES ($1::text::uuid, $2, $3) RETURNING id::text",
        model_id,
        name,
        weight,
    )
    return id


async def insert_replica(
    connection: asyncpg.Connection,
    version_id: str,
    name: str,
    url: str,
    kind: str,
    engine_model: str,
    slots: int,
) -> str:
    """The new replica's id. Raises asyncpg.UniqueViolationError when the version has one of that name."""
    id: str = await connection.fetchval(
        "INSERT INTO replicas (version_id, name, url, kind, engine_model, slots)"
        " VALUES ($1::text::uuid, $2, $3, $4, $5, $6) RETURNING id::text",
        version_id,
        name,
        url,
        kind,
        engine_model,
        slots,
    )
    return id


async def model_id(connection: asyncpg.Connection, *, id: str | None, name: str) -> str | None:
    """The id of the model of that id, else of that name, locked until the transaction ends."""
    found: str | None = await connection.fetchval(
        "SELECT id::text FROM models WHERE id = $1::text::uuid OR name = $2"
        " ORDER BY id = $1::text::uuid DESC NULLS LAST LIMIT 1 FOR UPDATE",
        id,
        name,
    )
    return found


async def model_names(connection: asyncpg.Connection) -> list[str]:
    """The names of all models, in order."""
    return [row["name"] for row in await connection.fetch("SELECT name FROM models ORDER BY name")]


async def models(connection: asyncpg.Connection, id: str | None = None) -> list[ModelRow]:
    """All models (or the one of that id) by name, with versions and replicas."""
    found = await connection.fetch(
        MODELS + " WHERE $1::text IS NULL OR id = $1::text::uuid ORDER BY name", id
    )
    versions = await connection.fetch(
        VERSIONS + " WHERE $1::text IS NULL OR model_id = $1::text::uuid ORDER BY created_at, name", id
    )
    replicas = await connection.fetch(
        REPLICAS + " WHERE version_id = ANY($1::text[]::uuid[]) ORDER BY created_at, name",
        [row["id"] for row in versions],
    )
    models = {row["id"]: ModelRow(*row) for row in found}
    by_id = {row["id"]: VersionRow(*row) for row in versions}
    for replica in map(_replica, replicas):
        by_id[replica.version_id].replicas.append(replica)
    for version in by_id.values():
        # A model made between the queries shows up the next time, with its versions.
        if (model := models.get(version.model_id)) is not None:
            model.versions.append(version)
    return list(models.values())


async def version(connection: asyncpg.Connection, id: str) -> VersionRow | None:
    """The version of that id, with its replicas, locked until the transaction ends."""
    row = await connection.fetchrow(VERSIONS + " WHERE id = $1::text::uuid FOR UPDATE", id)
    if row is None:
        return None
    replicas = await connection.fetch(
        REPLICAS + " WHERE version_id = $1::text::uuid ORDER BY created_at, name", id
    )
    found = VersionRow(*row)
    found.replicas.extend(map(_replica, replicas))
    return found


async def version_named(connection: asyncpg.Connection, model_id: str, name: str) -> VersionRow | None:
    """The model's version of that name, with its replicas, locked until the transaction ends."""
    id = await connection.fetchval(
        "SELECT id::text FROM versions WHERE model_id = $1::text::uuid AND name = $2", model_id, name
    )
    return None if id is None else await version(connection, id)


async def replica(connection: asyncpg.Connection, id: str) -> ReplicaRow | None:
    """The replica of that id."""
    row = await connection.fetchrow(REPLICAS + " WHERE id = $1::text::uuid", id)
    return None if row is None else _replica(row)


async def update_model(
    connection: asyncpg.Connection,
    id: str,
    default_max_output: int,
    context_length: int | None,
    endpoints: Sequence[str],
) -> None:
    """Writes these values."""
    await connection.execute(
        "UPDATE models SET default_max_output = $2, context_length = $3, endpoints = $4"
        " WHERE id = $1::text::uuid",
        id,
        default_max_output,
        context_length,
        list(endpoints),
    )


async def update_version(connection: asyncpg.Connection, id: str, weight: int) -> None:
    """Writes the weight."""
    await connection.execute("UPDATE versions SET weight = $2 WHERE id = $1::text::uuid", id, weight)


async def update_replica(
    connection: asyncpg.Connection,
    id: str,
    url: str,
    kind: str,
    engine_model: str,
    slots: int,
    state: str,
) -> None:
    """Writes these values."""
    await connection.execute(
        "UPDATE replicas SET url = $2, kind = $3, engine_model = $4, slots = $5, state = $6"
        " WHERE id = $1::text::uuid",
        id,
        url,
        kind,
        engine_model,
        slots,
        state,
    )


async def delete_model(connection: asyncpg.Connection, id: str) -> None:
    """Deletes the model, its versions and their replicas; what they served stays in the books by id."""
    await connection.execute(
        "DELETE FROM replicas WHERE version_id IN (SELECT id FROM versions WHERE model_id = $1::text::uuid)",
        id,
    )
    await connection.execute("DELETE FROM versions WHERE model_id = $1::text::uuid", id)
    await connection.execute("DELETE FROM models WHERE id = $1::text::uuid", id)


async def delete_version(connection: asyncpg.Connection, id: str) -> None:
    """Deletes the version and its replicas."""
    await connection.execute("DELETE FROM replicas WHERE version_id = $1::text::uuid", id)
    await connection.execute("DELETE FROM versions WHERE id = $1::text::uuid", id)


async def delete_replica(connection: asyncpg.Connection, id: str) -> None:
    """Deletes the replica."""
    await connection.execute("DELETE FROM replicas WHERE id = $1::text::uuid", id)


def _replica(row: asyncpg.Record) -> ReplicaRow:
    return ReplicaRow(*row)
