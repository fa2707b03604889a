"""The parts of one `tollgate up`, each one entry here: embedded servers, drainer, API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tollgate.embedded.passwords import passwords_in
from tollgate.embedded.postgres import Postgres
from tollgate.embedded.valkey import Role, Valkey
from tollgate.supervisor.checks import check_database, check_valkey
from tollgate.supervisor.options import Options
from tollgate.supervisor.part import Part, Tier
from tollgate.supervisor.ports import require_free
from tollgate.supervisor.process import Command

STOP_MARGIN_SECONDS = 5.0  # beyond the API's own limit for its streams


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Servers to start, and the addresses (by variable name) of all four, given ones among them."""

    parts: tuple[Part, ...]
    urls: Mapping[str, str]
    postgres: Postgres | None


def server_parts(options: Options, home: Path) -> ServerParts:
    """Embedded servers for the roles that no URL was given for; given ones are asked once.

    Raises PortTaken or Unreachable.
    """
    words = passwords_in(home)
    parts: list[Part] = []
    urls = dict(options.given)
    postgres = None
    if "DATABASE_URL" in urls:
        check_database(urls["DATABASE_URL"])
    else:
        require_free(options.postgres_port, what="PostgreSQL", option="--postgres-port")
        postgres = Postgres(
            home / "postgres", options.postgres_port, words.postgres_superuser, words.postgres
        )
        urls["DATABASE_URL"] = postgres.url
        parts.append(_postgres_part(postgres))
    roles: tuple[tuple[Role, int, str], ...] = (
        ("broker", options.broker_port, words.broker),
        ("limits", options.limits_port, words.limits),
        ("cache", options.cache_port, words.cache),
    )
    for role, port, password in roles:
        variable = f"{role.upper()}_URL"
        if variable in urls:
            check_valkey(variable, urls[variable])
            continue
        require_free(port, what=f"the {role} Valkey", option=f"--{role}-port")
        valkey = Valkey(role, home / role, port, password)
        urls[variable] = valkey.url
        parts.append(_valkey_part(valkey))
    return ServerParts(parts=tuple(parts), urls=urls, postgres=postgres)


def _postgres_part(postgres: Postgres) -> Part:
    return Part(
        name="postgres",
        tier=Tier.DATABASE,
        prepare=postgres.prepare,
        is_ready=postgres.is_ready,
        # After a crash of the machine it replays its log first.
        start_seconds=120,
        stop_seconds=30,
    )


def _valkey_part(valkey: Valkey) -> Part:
    return Part(
        name=f"valkey-{valkey.role}",
        tier=Tier.STORES,
        prepare=valkey.prepare,
        is_ready=valkey.is_ready,
        start_seconds=60,
        stop_seconds=10,
    )


def drainer_part(environment: Mapping[str, str]) -> Part:
    """Moves the journal to the books; at its end it makes one last pass."""
    command = Command(name="drainer", argv=(sys.executable, "-m", "ledger.drainer"), env=environment)
    return Part(
        name="drainer", tier=Tier.BOOKS, prepare=lambda: command, ready_line=b" reading ", stop_seconds=20
    )


def api_parts(options: Options, environment: Mapping[str, str], listener: int) -> list[Part]:
    """API processes that accept from one listening socket, which the supervisor keeps open."""
    words = ("-m", "api", "--fd", str(listener), "--grace", f"{options.grace:g}", *options.api_words)
    return [
        _api_part(number, words, environment, options, listener) for number in range(1, options.workers + 1)
    ]


def _api_part(
    number: int, words: tuple[str, ...], environment: Mapping[str, str], options: Options, listener: int
) -> Part:
    name = f"api-{number}"
    command = Command(name=name, argv=(sys.executable, *words), env=environment, pass_fds=(listener,))
    return Part(
        name=name,
        tier=Tier.API,
        prepare=lambda: command,
        ready_line=b"Application startup complete",
        start_seconds=60,
        stop_seconds=options.grace + STOP_MARGIN_SECONDS,
    )
