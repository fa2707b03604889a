"""The four embedded servers as one thing, for tests and for whoever needs real servers for a while."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tollgate.embedded.passwords import passwords_in
from tollgate.embedded.postgres import Postgres
from tollgate.embedded.valkey import Role, Valkey
from tollgate.errors import ServerFailed
from tollgate.supervisor.ports import free_ports
from tollgate.supervisor.process import Command, log_tail, spawn, stop

START_SECONDS = 30.0
STOP_SECONDS = 10.0
ROLES: tuple[Role, ...] = ("broker", "limits", "cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """One port for each server."""

    postgres: int
    broker: int
    limits: int
    cache: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Addresses with their passwords; pids by name (postgres, valkey-broker, valkey-limits, valkey-cache)."""

    database_url: str
    superuser_url: str
    broker_url: str
    limits_url: str
    cache_url: str
    pids: dict[str, int]

    def environment(self) -> dict[str, str]:
        """The variables that Tollgate's processes read their servers from."""
        return {
            "DATABASE_URL": self.database_url,
            "BROKER_URL": self.broker_url,
            "LIMITS_URL": self.limits_url,
            "CACHE_URL": self.cache_url,
        }


@contextlib.contextmanager
def running_servers(folder: Path, ports: Ports | None = None, *, durable: bool = False) -> Iterator[Servers]:
    """Run PostgreSQL (with an empty database `tollgate`) and three Valkeys until the block ends.

    folder: gets their data and logs; a second run in it finds their data. ports: chosen when None.
    durable: False leaves out fsync, which only a crash of the whole machine would notice.
    """
    if ports is None:
        ports = Ports(**dict(zip(("postgres", "broker", "limits", "cache"), free_ports(4), strict=True)))
    folder.mkdir(parents=True, exist_ok=True)
    words = passwords_in(folder)
    postgres = Postgres(
        folder / "postgres", ports.postgres, words.postgres_superuser, words.postgres, durable
    )
    valkeys = {
        role: Valkey(role, folder / role, getattr(ports, role), getattr(words, role)) for role in ROLES
    }
    with contextlib.ExitStack() as running:
        pids = {}
        servers: tuple[Postgres | Valkey, ...] = (postgres, *valkeys.values())
        for server in servers:
            command = server.prepare()
            pids[command.name] = running.enter_context(_running(command, folder, server.is_ready)).pid
        postgres.ensure_database()
        yield Servers(
            database_url=postgres.url,
            superuser_url=postgres.superuser_url,
            broker_url=valkeys["broker"].url,
            limits_url=valkeys["limits"].url,
            cache_url=valkeys["cache"].url,
            pids=pids,
        )


@contextlib.contextmanager
def _running(
    command: Command, folder: Path, is_ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / f"{command.name}.log"
    process = spawn(command, log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"{command.name} did not start: {log_tail(log)} (see {log}).")
            time.sleep(0.01)
        yield process
    finally:
        stop(process, command.stop_signal, STOP_SECONDS)
