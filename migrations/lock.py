"""One migrator at a time: a session lock in Postgres, which the server frees when its holder dies."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from migrations.check import address, connect
from migrations.errors import MigrationBusy

LOCK_KEY = 0x746F_6C6C  # "toll"
POLL_SECONDS = 0.2
WAIT_SECONDS = 600.0  # for another starter's migration
LOCK_TIMEOUT_MS = 5000  # the longest that a migration makes others wait for a table


@contextmanager
def migration_lock(
    database_url: str, *, wait_seconds: float, lock_timeout_ms: int, on_wait: Callable[[], None] | None = None
) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The connection that holds the lock, in autocommit mode. Raises MigrationBusy after `wait_seconds`.

    Polls rather than waits inside Postgres: a waiting statement holds a snapshot, and an index built
    concurrently by the holder would wait for that snapshot: a deadlock.
    """
    with connect(database_url, application="tollgate-migrate") as connection:
        # A migrator that was killed must not go on working in the server.
        connection.execute("SET client_connection_check_interval = '1s'")
        deadline = time.monotonic() + wait_seconds
        told = False
        while not _try(connection):
            if time.monotonic() > deadline:
                raise MigrationBusy(
                    f"Another starter has been migrating {address(database_url)} for over "
                    f"{wait_seconds:g} s: wait for it, or end its session (application_name "
                    "'tollgate-migrate' in pg_stat_activity)."
                )
            if on_wait and not told:
                on_wait()
                told = True
            time.sleep(POLL_SECONDS)
        connection.execute(f"SET lock_timeout = {int(lock_timeout_ms)}")
        yield connection


def _try(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (LOCK_KEY,)).fetchone()
    return row is not None and row[0] is True
