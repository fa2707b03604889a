"""Nothing is lost and nothing doubled, whoever dies at whatever moment."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.api.own_postgres import OwnPostgres, own_postgres
from tests.databases import fresh_database, rows
from tests.ledger.calls import closed, opened, write_calls
from tests.ledger.draining import WORDS, drain, drainer, environment, faults, give_price
from tests.waiting import until
from tollgate.servers import Servers

PRICE_OF_A_CALL = Decimal("0.000223")
# Only of the test's own database: drainers of others write to the same server.
SESSIONS = (
    "SELECT 1 FROM pg_stat_activity"
    " WHERE application_name = 'tollgate-drainer' AND datname = current_database()"
)


@pytest.fixture
def books(servers: Servers, _template: None) -> Iterator[str]:
    """A database of the test's own."""
    with fresh_database(servers.database_url) as url:
        give_price(url)
        yield url


@dataclass
class Writer:
    """A process that writes calls until it dies, and what it was told to be written."""

    folder: Path
    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)

    def start(self) -> None:
        words = [
            sys.executable,
            "-m",
            "tests.ledger.dying_writer",
            str(self.folder),
            "--calls-per-second",
            "300",
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._listener = threading.Thread(target=self._listen, args=[self.process])
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                kind, id = line.split()
                if kind in "ob":
                    self.opened.add(id)
                if kind in "cb":
                    self.closed.add(id)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()


def check_books(url: str, writers: list[Writer]) -> dict[str, int]:
    """Each call that was closed has one charge; each that was opened has one row; the books add up."""
    found = rows(url, "SELECT id::text, outcome, charge FROM usage")
    outcome = {row["id"]: row["outcome"] for row in found}
    assert len(outcome) == len(found)
    for writer in writers:
        assert {id for id in writer.closed if outcome.get(id) != "completed"} == set()
        assert {id for id in writer.opened if id not in outcome} == set()
    charges = rows(url, "SELECT call_id::text AS id, amount FROM transfers WHERE kind = 'charge'")
    completed = sorted(id for id, what in outcome.items() if what == "completed")
    assert sorted(row["id"] for row in charges) == completed
    assert {row["amount"] for row in charges} == {PRICE_OF_A_CALL}
    assert rows(url, "SELECT * FROM quarantine") == []
    assert faults(url) == []
    return {"completed": len(completed), "interrupted": len(outcome) - len(completed)}


def test_killed_between_copy_and_commit_it_leaves_nothing_and_the_next_one_books_all(
    books: str, tmp_path: Path
) -> None:
    calls = [opened() for _ in range(300)]
    write_calls(tmp_path / "journal", calls, [closed(call) for call in calls[:290]])
    with psycopg.connect(books) as locker:
        locker.execute("LOCK TABLE balances IN ACCESS EXCLUSIVE MODE")
        with drainer(books, tmp_path / "journal", tmp_path / "log") as running:
            until(
                lambda: rows(
                    books,
                    SESSIONS + " AND wait_event_type = 'Lock'",
                ),
                "the drainer waits for balances, its rows copied",
            )
            running.kill()
    until(lambda: not rows(books, SESSIONS), "its session is gone")
    assert rows(books, "SELECT count(*) AS n FROM usage") == [{"n": 0}]
    drain(books, tmp_path / "journal")
    assert check_books(books, []) == {"completed": 290, "interrupted": 10}


def test_writers_and_drainer_killed_at_random_lose_nothing_and_double_nothing(
    books: str, tmp_path: Path
) -> None:
    dice = random.Random(5)
    journal = tmp_path / "journal"
    writers = [Writer(journal), Writer(journal)]
    for writer in writers:
        writer.start()
    with drainer(books, journal, tmp_path / "log") as running:
        for number in range(1, 13):
            until(lambda: running.log.read_text().count("reading") == number, "it works", 20)  # noqa: B023
            time.sleep(dice.uniform(0, 0.25))
            running.kill()
            running.start()
            if dice.random() < 0.4:
                victim = dice.choice(writers)
                victim.kill()
                victim.start()
        for writer in writers:
            writer.kill()
        until(lambda: running.log.read_text().count("reading") == 13, "it works", 20)
        assert running.terminate(30) == 0
    assert list(journal.glob("*.journal")) == []
    counts = check_books(books, writers)
    assert counts["completed"] > 100
    assert counts["interrupted"] > 0


def test_two_hosts_drain_into_the_same_books_at_once(books: str, tmp_path: Path) -> None:
    running = []
    for host in ("one", "two"):
        for _ in range(3):
            calls = [opened(end_user=f"user-{number % 7}") for number in range(400)]
            write_calls(tmp_path / host, calls, [closed(call) for call in calls])
        running.append(subprocess.Popen([*WORDS, "--once"], env=environment(books, tmp_path / host)))
    assert [process.wait(60) for process in running] == [0, 0]
    assert check_books(books, []) == {"completed": 2400, "interrupted": 0}


def test_sigterm_ends_it_with_code_0_when_all_is_in_the_books(books: str, tmp_path: Path) -> None:
    calls = [opened() for _ in range(2000)]
    with drainer(books, tmp_path / "journal", tmp_path / "log") as running:
        running.says("reading")
        write_calls(tmp_path / "journal", calls, [closed(call) for call in calls])
        assert running.terminate() == 0
    assert check_books(books, []) == {"completed": 2000, "interrupted": 0}
    assert list((tmp_path / "journal").glob("*.journal")) == []


def test_a_second_drainer_says_that_one_runs_and_exits_while_the_first_works_on(
    books: str, tmp_path: Path
) -> None:
    with drainer(books, tmp_path / "journal", tmp_path / "log") as first:
        first.says("reading")
        second = subprocess.run(
            WORDS,
            env=environment(books, tmp_path / "journal"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == 1
        assert f"A drainer (process {first.process.pid}) already reads" in second.stderr
        call = opened()
        write_calls(tmp_path / "journal", [call], [closed(call)])
        until(lambda: rows(books, "SELECT 1 FROM usage WHERE id = %s", call.id), "the first one books")
    with drainer(books, tmp_path / "journal", tmp_path / "log2") as third:  # killed above: its lock is free
        third.says("reading")


def test_behind_its_address_is_another_database_all_of_a_sudden_and_every_call_is_booked_there(
    books: str, servers: Servers, tmp_path: Path
) -> None:
    def booked(call: Any) -> bool:
        return bool(rows(books, "SELECT 1 FROM transfers WHERE call_id = %s", call.id))

    journal = tmp_path / "journal"
    with (
        fresh_database(servers.database_url) as restored,
        drainer(books, journal, tmp_path / "log") as running,
    ):
        give_price(restored)
        (before,) = some_calls(journal, 1)
        until(lambda: booked(before), "it knows the accounts")
        with psycopg.connect(servers.database_url, autocommit=True) as connection:
            swap(connection, urlsplit(books).path[1:], urlsplit(restored).path[1:])
        after = some_calls(journal, 3)
        until(lambda: rows(books, "SELECT 1 FROM journal_files"), "it writes to the other database")
        assert running.terminate() == 0
        assert [booked(call) for call in [before, *after]] == [False, True, True, True]
        assert rows(books, "SELECT * FROM quarantine") == []
        assert faults(books) == []


def swap(connection: psycopg.Connection[Any], one: str, other: str) -> None:
    """Each of the two databases has the other's name; whoever is connected is thrown out."""
    for old, new in ((one, f"{one}_old"), (other, one), (f"{one}_old", other)):
        connection.execute(
            sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(old))
        )
        while connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [old]
        ).rowcount:
            pass
        connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(*map(sql.Identifier, (old, new))))
    for name in (one, other):
        connection.execute(
            sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true").format(sql.Identifier(name))
        )


# Postgres away


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path_factory.mktemp("own")) as own:
        give_price(own.url)
        yield own


@pytest.fixture
def booked(postgres: OwnPostgres) -> Callable[[list[Any]], bool]:
    def look(calls: list[Any]) -> bool:
        ids = [call.id for call in calls]
        (row,) = rows(postgres.url, "SELECT count(*) AS n FROM usage WHERE id = ANY(%s::uuid[])", ids)
        return bool(row["n"] == len(ids))

    return look


def some_calls(folder: Path, count: int = 100) -> list[Any]:
    calls = [opened() for _ in range(count)]
    write_calls(folder, calls, [closed(call) for call in calls])
    return calls


def test_while_postgres_is_down_calls_wait_in_the_journal_and_the_log_has_one_line_per_change(
    postgres: OwnPostgres, booked: Callable[[list[Any]], bool], tmp_path: Path
) -> None:
    journal, log = tmp_path / "journal", tmp_path / "log"
    with drainer(postgres.url, journal, log) as running:
        first = some_calls(journal)
        until(lambda: booked(first), "the first calls are booked")
        for _ in range(2):
            postgres.kill()
            lost = some_calls(journal)
            running.says("Postgres is away")
            lost += some_calls(journal)
            assert len(list(journal.glob("*.journal"))) == 2
            postgres.start()
            until(lambda: booked(lost), "what waited is booked", 20)  # noqa: B023
        assert running.terminate() == 0
    said = log.read_text()
    assert said.count("Postgres is away") == 2
    assert said.count("Postgres is back") == 2
    assert "password" not in said
    assert faults(postgres.url) == []


def test_it_starts_while_postgres_is_down_and_stops_while_it_is_down_and_the_next_one_books(
    postgres: OwnPostgres, booked: Callable[[list[Any]], bool], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    postgres.kill()
    try:
        with drainer(postgres.url, journal, tmp_path / "log") as running:
            calls = some_calls(journal)
            running.says("Postgres is away")
            assert running.terminate() == 0
            running.says("stays in the journal")
    finally:
        postgres.start()
    drain(postgres.url, journal)
    assert booked(calls)


def test_a_frozen_postgres_does_not_hold_up_the_end_beyond_the_grace(
    postgres: OwnPostgres, booked: Callable[[list[Any]], bool], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with drainer(postgres.url, journal, tmp_path / "log", "--grace", "1") as running:
        first = some_calls(journal, 5)
        until(lambda: booked(first), "it works")
        postgres.freeze()
        try:
            calls = some_calls(journal)
            time.sleep(0.2)
            began = time.monotonic()
            assert running.terminate() == 0
            assert time.monotonic() - began < 5
        finally:
            postgres.thaw()
    drain(postgres.url, journal)
    assert booked(calls)
    assert faults(postgres.url) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_with_postgres_down_around_the_end_of_every_process_all_is_booked_after_the_restart(
    postgres: OwnPostgres, tmp_path: Path, how: signal.Signals
) -> None:
    journal = tmp_path / "journal"
    rows_before = rows(postgres.url, "SELECT count(*) AS n FROM usage")[0]["n"]
    writer = Writer(journal)
    with drainer(postgres.url, journal, tmp_path / "log") as running:
        writer.start()
        until(lambda: len(writer.closed) > 50, "calls come")
        postgres.kill()
        until(lambda: len(writer.closed) > 200, "calls come while Postgres is down")
        writer.kill()
        running.process.send_signal(how)
        running.process.wait(20)
    postgres.start()
    drain(postgres.url, journal)
    found = rows(postgres.url, "SELECT id::text, outcome FROM usage")
    outcome = {row["id"]: row["outcome"] for row in found}
    assert {id for id in writer.closed if outcome.get(id) != "completed"} == set()
    assert {id for id in writer.opened if id not in outcome} == set()
    assert len(found) - rows_before >= len(writer.opened)
    assert faults(postgres.url) == []
