"""Brings the database to this code's schema: under a lock, giving way to readers, step by step.

Faces: `upgrade(database_url)`, `check(database_url)`, `heads()`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from migrations import graph
from migrations.check import check, compare, connect
from migrations.errors import MigrationBlocked, PostgresTooOld, SchemaBehind
from migrations.graph import heads
from migrations.indexes import drop_invalid_indexes, require_valid_indexes
from migrations.lock import migration_lock

__all__ = ["check", "heads", "locked", "upgrade"]

HERE = Path(__file__).parent
OLDEST_POSTGRES = 150000  # UNIQUE NULLS NOT DISTINCT
WAIT_SECONDS = 600.0  # for another starter's migration
LOCK_TIMEOUT_MS = 5000  # the longest that a migration makes others wait for a table
ATTEMPTS = 3
PAUSE_SECONDS = 5.0  # between attempts, so that what queued behind the first gets through


def upgrade(
    database_url: str,
    *,
    scripts: Path = HERE,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    attempts: int = ATTEMPTS,
    pause_seconds: float = PAUSE_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    say: Callable[[str], None] = lambda words: None,
) -> list[str]:
    """Migrates to the head; returns the revisions applied, none when there was nothing to do.

    Of several starters one migrates while the others wait, then find nothing to do. `say` gets a sentence
    for people whenever something is waited for. Raises MigrationError's classes, each with one sentence.
    """
    versions = scripts / "versions"
    target = graph.head(versions)
    with connect(database_url, application="tollgate-check") as connection:
        _require_version(connection)
        if _is_current(connection, versions):
            require_valid_indexes(connection)
            _ensure_months(connection)
            return []
    applied: list[str] = []
    with migration_lock(
        database_url,
        wait_seconds=wait_seconds,
        lock_timeout_ms=lock_timeout_ms,
        on_wait=lambda: say("Another starter is migrating the database: waiting for it."),
    ) as connection:
        for attempt in range(1, attempts + 1):
            try:
                if not _is_current(connection, versions):
                    drop_invalid_indexes(connection)
                    applied += _run(connection, scripts)
                break
            except (DBAPIError, psycopg.errors.LockNotAvailable) as error:
                if not _is_lock_timeout(error):
                    raise
                blockers = _longest_sessions(connection)
                if attempt == attempts:
                    raise MigrationBlocked(
                        f"The migration to revision {target} could not lock a table within {lock_timeout_ms} "
                        f"ms, {attempts} times; the schema is as the last whole migration left it. Longest "
                        f"open transactions: {blockers}. End them or wait, then run 'tollgate migrate' again."
                    ) from error
                say(f"A table is in use ({blockers}): trying again in {pause_seconds:g} s.")
                time.sleep(pause_seconds)
        require_valid_indexes(connection)
        _ensure_months(connection)
    return applied


@contextmanager
def locked(database_url: str, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> Iterator[Connection]:
    """A SQLAlchemy connection that holds the migration lock: for `alembic` run by hand."""
    with (
        migration_lock(
            database_url, wait_seconds=WAIT_SECONDS, lock_timeout_ms=lock_timeout_ms
        ) as connection,
        _sqlalchemy(connection) as wrapped,
    ):
        yield wrapped


@contextmanager
def _sqlalchemy(connection: psycopg.Connection[tuple[object, ...]]) -> Iterator[Connection]:
    """The same session for Alembic, so that lock and work live and die together."""
    connection.autocommit = False
    engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool)
    try:
        with engine.connect() as wrapped:
            yield wrapped
    finally:
        if not connection.closed:
            connection.rollback()
            connection.autocommit = True


def _run(connection: psycopg.Connection[tuple[object, ...]], scripts: Path) -> list[str]:
    before = _stamped(connection)
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    with _sqlalchemy(connection) as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, "head")
    order = _in_order(scripts / "versions")
    done = order.index(before) + 1 if before else 0
    return order[done:]


def _in_order(versions: Path) -> list[str]:
    """From the first revision to the head: one line of descent, as two heads are refused."""
    graph_of = graph.parents(versions)
    line = [graph.head(versions)]
    while graph_of[line[-1]]:
        line.append(graph_of[line[-1]][0])
    return line[::-1]


def _stamped(connection: psycopg.Connection[tuple[object, ...]]) -> str | None:
    row = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _is_current(connection: psycopg.Connection[tuple[object, ...]], versions: Path) -> bool:
    """Raises SchemaAhead: a newer release migrated this database, and there is no way back."""
    try:
        compare(connection, versions)
    except SchemaBehind:
        return False
    return True


def _require_version(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    if connection.info.server_version < OLDEST_POSTGRES:
        raise PostgresTooOld(
            f"This server is PostgreSQL {connection.info.server_version // 10000} and Tollgate needs 15 or "
            "newer: point DATABASE_URL at a newer one."
        )


def _ensure_months(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """This month's partitions and the next two; the drainer makes any other that a row needs."""
    row = connection.execute("SELECT to_regproc('ensure_month') IS NOT NULL").fetchone()
    if row is not None and row[0]:
        connection.execute(
            "SELECT ensure_month((now() AT TIME ZONE 'UTC' + ahead * INTERVAL '1 month')::date) "
            "FROM generate_series(0, 2) AS ahead"
        )


def _is_lock_timeout(error: Exception) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.errors.LockNotAvailable)


def _longest_sessions(connection: psycopg.Connection[tuple[object, ...]]) -> str:
    rows = connection.execute(
        "SELECT pid, coalesce(nullif(application_name, ''), 'unnamed'), "
        "round(extract(epoch FROM now() - xact_start)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 3"
    )
    found = [f"pid {pid} ({name}, {seconds} s)" for pid, name, seconds in rows]
    return ", ".join(found) or "none is left now"
