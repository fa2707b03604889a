"""Which models there are, in which versions, on which replicas: the values that every call reads.

A registry is loaded whole from Postgres and replaced whole. Only Replica objects live on across loads, as
long as id and address stay the same, because calls in flight count themselves on them.
"""

import logging
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import asyncpg

from engine.errors import InvalidSetting

log = logging.getLogger(__name__)

Kind = Literal["light", "vllm", "openai"]
State = Literal["ready", "draining", "off"]

ENDPOINTS = ("chat/completions", "completions", "embeddings", "responses", "messages")
KINDS: tuple[Kind, ...] = ("light", "vllm", "openai")
STATES: tuple[State, ...] = ("ready", "draining", "off")


@dataclass(slots=True, eq=False)
class Model:
    """A name that callers ask for. Lengths in tokens; context_length None = only the engine knows."""

    id: str
    name: str
    default_max_output: int
    context_length: int | None
    endpoints: frozenset[str]
    created: int  # seconds since the epoch
    versions: list["Version"] = field(default_factory=list, repr=False)


@dataclass(slots=True, eq=False)
class Version:
    """One version of a model; weight is its share of the calls against its sisters' weights, 0 = none."""

    id: str
    name: str
    weight: int
    model: Model = field(repr=False)
    replicas: list["Replica"] = field(default_factory=list, repr=False)


@dataclass(slots=True, eq=False)
class Replica:
    """One engine address that serves a version, with `slots` calls at most at a time.

    Requests go to host:port at base_path + "/v1/" + endpoint, under the name engine_model.
    in_flight: calls of this process on it right now, kept by the lane.
    """

    id: str
    name: str
    url: str
    host: str
    port: int
    base_path: str
    kind: Kind
    engine_model: str
    slots: int
    state: State
    version: Version = field(repr=False)
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class Registry:
    """All models by name."""

    models: dict[str, Model] = field(default_factory=dict)

    def replicas(self) -> dict[tuple[str, str], Replica]:
        """Every replica by (id, url), whatever its state."""
        return {
            (replica.id, replica.url): replica
            for model in self.models.values()
            for version in model.versions
            for replica in version.replicas
        }


def split_engine_url(url: str) -> tuple[str, int, str]:
    """Host, port and base path of an engine's address; a trailing '/v1' belongs to the wire, not to it.

    >>> split_engine_url("http://127.0.0.1:8001/llm/v1/")
    ('127.0.0.1', 8001, '/llm')

    Raises InvalidSetting. The message never repeats the address, which may carry a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise InvalidSetting("An engine address must look like http://HOST:PORT.", "url") from None
    if parts.scheme != "http":
        raise InvalidSetting(
            "An engine address must start with http:// (put a TLS proxy before others).", "url"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidSetting("An engine address must not carry a user name or password.", "url")
    if (
        parts.query
        or parts.fragment
        or not parts.hostname
        or not url.isascii()
        or not url.strip().isprintable()
    ):
        raise InvalidSetting("An engine address must look like http://HOST:PORT, with no query.", "url")
    if " " in url.strip() or port == 0:
        raise InvalidSetting("An engine address must look like http://HOST:PORT.", "url")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path[: -len("/v1")].rstrip("/")
    return parts.hostname, port or 80, path


async def load_registry(connection: asyncpg.Connection, previous: Registry | None) -> Registry:
    """The registry as it stands in the database; replicas of `previous` with the same id and address live on.

    One statement, so that models, versions and replicas are of one moment.
    """
    rows = await connection.fetch(
        """
        SELECT m.id::text AS model_id, m.name AS model, m.default_max_output, m.context_length, m.endpoints,
               extract(epoch FROM m.created_at)::bigint AS created,
               v.id::text AS version_id, v.name AS version, v.weight,
               r.id::text AS replica_id, r.name AS replica, r.url, r.kind, r.engine_model, r.slots, r.state
        FROM models m
        LEFT JOIN versions v ON v.model_id = m.id
        LEFT JOIN replicas r ON r.version_id = v.id
        ORDER BY m.name, v.created_at, v.name, v.id, r.created_at, r.name, r.id
        """
    )
    known = previous.replicas() if previous is not None else {}
    registry = Registry()
    versions: dict[str, Version] = {}
    for row in rows:
        model = registry.models.get(row["model"])
        if model is None:
            model = Model(
                row["model_id"],
                row["model"],
                row["default_max_output"],
                row["context_length"],
                frozenset(row["endpoints"]),
                row["created"],
            )
            registry.models[model.name] = model
        if row["version_id"] is None:
            continue
        version = versions.get(row["version_id"])
        if version is None:
            version = Version(row["version_id"], row["version"], row["weight"], model)
            versions[version.id] = version
            model.versions.append(version)
        if row["replica_id"] is not None:
            replica = _replica(row, version, known)
            if replica is not None:
                version.replicas.append(replica)
    return registry


def _replica(row: asyncpg.Record, version: Version, known: dict[tuple[str, str], Replica]) -> Replica | None:
    replica = known.get((row["replica_id"], row["url"]))
    if replica is None:
        try:
            host, port, base_path = split_engine_url(row["url"])
        except InvalidSetting as error:
            # One bad row must not keep all the others from being served.
            log.error("replica %s of %s is left out: %s", row["replica"], row["model"], error)
            return None
        return Replica(
            row["replica_id"],
            row["replica"],
            row["url"],
            host,
            port,
            base_path,
            row["kind"],
            row["engine_model"],
            row["slots"],
            row["state"],
            version,
        )
    replica.name = row["replica"]
    replica.kind = row["kind"]
    replica.engine_model = row["engine_model"]
    replica.slots = row["slots"]
    replica.state = row["state"]
    replica.version = version
    return replica
