"""Alembic on the connection that holds the migration lock, so that lock and work live and die together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from migrations.errors import MigrationFailed
from migrations.lock import LOCK_TIMEOUT_MS, WAIT_SECONDS, migration_lock


def run_steps(connection: psycopg.Connection[tuple[object, ...]], scripts: Path) -> None:
    """Every migration that is missing, each in a transaction of its own: those before one that fails stay.

    Raises psycopg.errors.LockNotAvailable when one could not lock a table in time, else MigrationFailed.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    try:
        with _sqlalchemy(connection) as wrapped:
            config.attributes["connection"] = wrapped
            command.upgrade(config, "head")
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.errors.LockNotAvailable):
            raise error.orig from error
        reason = (str(error.orig).strip().splitlines() or ["no reason given"])[0]
        raise MigrationFailed(
            f"A migration failed ({reason}); the schema is as the last whole migration left it. Mend that "
            "and run 'tollgate migrate' again."
        ) from error


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
    connection.autocommit = False
    engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool)
    try:
        with engine.connect() as wrapped:
            yield wrapped
    finally:
        if not connection.closed:
            connection.rollback()
            connection.autocommit = True
