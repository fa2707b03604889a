"""Brings the database to this code's schema: under a lock, giving way to readers, step by step.

Faces: `upgrade(database_url)`, `check(database_url)`, `heads()`.
"""

import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from migrations import graph
from migrations.check import check, compare, connect, database_revisions
from migrations.errors import MigrationBlocked, PostgresTooOld, SchemaBehind
from migrations.graph import heads
from migrations.indexes import drop_invalid_indexes, require_valid_indexes
from migrations.lock import LOCK_TIMEOUT_MS, WAIT_SECONDS, migration_lock

__all__ = ["check", "heads", "upgrade"]

HERE = Path(__file__).parent
OLDEST_POSTGRES = 150000  # UNIQUE NULLS NOT DISTINCT
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
    with migration_lock(
        database_url,
        wait_seconds=wait_seconds,
        lock_timeout_ms=lock_timeout_ms,
        on_wait=lambda: say("Another starter is migrating the database: waiting for it."),
    ) as connection:
        before = database_revisions(connection)
        for attempt in range(1, attempts + 1):
            try:
                if not _is_current(connection, versions):
                    drop_invalid_indexes(connection)
                    # Alembic is loaded by who migrates, not by all who check.
                    from migrations.steps import run_steps

                    run_steps(connection, scripts)
                break
            except psycopg.errors.LockNotAvailable as error:
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
    line = graph.line(versions)
    return line[line.index(before[0]) + 1 if before else 0 :]


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


def _longest_sessions(connection: psycopg.Connection[tuple[object, ...]]) -> str:
    rows = connection.execute(
        "SELECT pid, coalesce(nullif(application_name, ''), 'unnamed'), "
        "round(extract(epoch FROM now() - xact_start)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 3"
    )
    found = [f"pid {pid} ({name}, {seconds} s)" for pid, name, seconds in rows]
    return ", ".join(found) or "none is left now"
