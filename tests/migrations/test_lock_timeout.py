"""A migration gives way: it makes nobody wait for longer than its lock_timeout."""

import threading
import time

import psycopg
import pytest

from migrations import graph
from migrations.errors import MigrationBlocked
from migrations.run import upgrade
from tests.migrations.conftest import Tree, ask, revision
from tests.waiting import until

LOCK_TIMEOUT = 0.4  # seconds
SLACK = 1.0  # seconds: two busy cores
LONG_QUERY = "SELECT count(*), pg_sleep(60) FROM usage"


def test_an_alter_behind_a_long_query_gives_up_and_nobody_waits_for_longer(tree: Tree, empty: str) -> None:
    upgrade(empty)
    tree.add("9001", 'op.execute("ALTER TABLE usage ADD COLUMN added_by_a_test text")')
    said: list[str] = []
    waits: list[float] = []
    done = threading.Event()

    def read_50_times_a_second() -> None:
        with psycopg.connect(empty, autocommit=True) as connection:
            while not done.wait(0.02):
                begun = time.monotonic()
                connection.execute("SELECT id FROM usage ORDER BY id DESC LIMIT 1").fetchall()
                waits.append(time.monotonic() - begun)

    def read_for_a_minute(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(LONG_QUERY)

    with psycopg.connect(empty, autocommit=True) as long:
        threads = [
            threading.Thread(target=read_for_a_minute, args=(long,)),
            threading.Thread(target=read_50_times_a_second),
        ]
        for thread in threads:
            thread.start()
        running = (
            f"SELECT 1 FROM pg_stat_activity WHERE query = '{LONG_QUERY}' AND state = 'active'"
            " AND datname = current_database()"
        )
        until(lambda: ask(empty, running), "the long query runs")
        until(lambda: len(waits) > 5, "requests are served")
        begun = time.monotonic()
        with pytest.raises(
            MigrationBlocked, match=r"could not lock a table within 400 ms, 2 times.*pid \d+"
        ) as refusal:
            upgrade(
                empty,
                scripts=tree.scripts,
                lock_timeout_ms=int(LOCK_TIMEOUT * 1000),
                attempts=2,
                pause_seconds=0.2,
                say=said.append,
            )
        took = time.monotonic() - begun
        served = len(waits)
        until(lambda: len(waits) > served + 5, "requests are served again")
        done.set()
        long.cancel()
        for thread in threads:
            thread.join(10)

    assert "9001" in str(refusal.value)
    assert 2 * LOCK_TIMEOUT < took < 2 * LOCK_TIMEOUT + 0.2 + 2 * SLACK
    assert (
        LOCK_TIMEOUT / 2 < max(waits) < LOCK_TIMEOUT + SLACK
    )  # they did queue behind the ALTER, and no longer
    assert len(said) == 1
    assert said[0].startswith("A table is in use (pid ")
    assert revision(empty) == graph.head()
    assert upgrade(empty, scripts=tree.scripts) == ["9001"]
