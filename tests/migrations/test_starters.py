"""Starters at once, starters that die half-way, and starters of another release."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from migrations import graph
from migrations.check import check
from migrations.errors import (
    AddressMalformed,
    DatabaseUnreachable,
    MigrationBusy,
    MigrationFailed,
    SchemaAhead,
    SchemaBehind,
)
from migrations.lock import migration_lock
from migrations.run import upgrade
from tests.migrations.conftest import Tree, ask, revision
from tests.waiting import until
from tollgate.servers import Servers

REPOSITORY = Path(__file__).parents[2]
SESSIONS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tollgate-migrate'"
)
MIGRATORS = f"SELECT count(*) {SESSIONS}"


def test_of_three_starters_on_an_empty_database_one_migrates_and_the_others_find_it_done(empty: str) -> None:
    here = Tree(REPOSITORY)
    with migration_lock(empty, wait_seconds=1, lock_timeout_ms=1000):
        starters = [here.start("upgrade", empty) for _ in range(3)]
        tried = f"{MIGRATORS} AND query LIKE 'SELECT pg_try_advisory_lock%' AND state = 'idle'"
        until(lambda: ask(empty, tried) == [(3,)], "three starters wait for the lock", within=30)
    said = [starter.communicate(timeout=60) for starter in starters]
    assert [starter.returncode for starter in starters] == [0, 0, 0], said
    last_lines = sorted(out.splitlines()[-1] for out, _ in said)
    assert last_lines == [
        f"Applied: {', '.join(sorted(graph.parents()))}.",
        "Nothing to do.",
        "Nothing to do.",
    ]
    assert all(out.startswith("Another starter is migrating") for out, _ in said)
    assert revision(empty) == graph.head()
    check(empty)


def test_a_starter_that_waited_too_long_says_who_holds_it_up(empty: str) -> None:
    with (
        migration_lock(empty, wait_seconds=1, lock_timeout_ms=1000),
        pytest.raises(MigrationBusy, match="Another starter has been migrating"),
    ):
        upgrade(empty, wait_seconds=0.1)


def test_a_second_run_changes_nothing(empty: str) -> None:
    assert upgrade(empty) == sorted(graph.parents())
    assert upgrade(empty) == []


def test_a_migration_killed_half_way_leaves_whole_steps_and_its_rerun_succeeds(
    tree: Tree, empty: str
) -> None:
    head = graph.head()
    tree.add(
        "9001",
        'op.execute("CREATE TABLE half_way (id int PRIMARY KEY)")',
        'op.execute("SELECT pg_sleep(" + os.environ.get("HALF_WAY_SECONDS", "0") + ")")',
        'op.execute("CREATE INDEX ix_half_way ON half_way (id)")',
    )
    killed = tree.start("upgrade", empty, HALF_WAY_SECONDS="120")
    asleep = f"SELECT 1 {SESSIONS} AND query = 'SELECT pg_sleep(120)'"
    until(lambda: ask(empty, asleep), "the migration is half-way", within=30)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    until(lambda: ask(empty, MIGRATORS) == [(0,)], "the server ended the dead migrator's session", within=30)
    assert revision(empty) == head
    assert ask(empty, "SELECT to_regclass('half_way')") == [(None,)]
    assert upgrade(empty, scripts=tree.scripts) == ["9001"]
    assert revision(empty) == "9001"
    assert ask(empty, "SELECT to_regclass('ix_half_way')::text") == [("ix_half_way",)]


def test_a_migration_that_postgres_refuses_is_one_sentence_and_leaves_whole_steps(
    tree: Tree, empty: str
) -> None:
    tree.add("9001", 'op.execute("CREATE TABLE whole ()")')
    tree.add("9002", 'op.execute("CREATE TABLE half ()")', 'op.execute("CREATE TABLE whole ()")')
    with pytest.raises(MigrationFailed, match=r'^A migration failed \(relation "whole" already exists\)'):
        upgrade(empty, scripts=tree.scripts)
    assert revision(empty) == "9001"
    assert ask(empty, "SELECT to_regclass('whole')::text, to_regclass('half')::text") == [("whole", None)]


def test_an_index_left_invalid_by_a_killed_build_is_built_anew(tree: Tree, empty: str) -> None:
    upgrade(empty)
    tree.add(
        "9001",
        "with op.get_context().autocommit_block():",
        '    op.execute("CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_apps_name ON apps (name)")',
    )
    invalid = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    with psycopg.connect(empty) as writer:
        writer.execute("INSERT INTO organisations (name) VALUES ('acme')")
        writer.execute("INSERT INTO apps (organisation_id, name) SELECT id, 'bot' FROM organisations")
        killed = tree.start("upgrade", empty)  # waits for the writer, its index being invalid until then
        until(lambda: ask(empty, invalid) == [("ix_apps_name",)], "the index is half built", within=30)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        until(lambda: ask(empty, MIGRATORS) == [(0,)], "the dead migrator's session ended", within=30)
    assert ask(empty, invalid) == [("ix_apps_name",)]
    assert upgrade(empty, scripts=tree.scripts) == ["9001"]
    assert ask(empty, invalid) == []
    assert ask(empty, "SELECT to_regclass('ix_apps_name')::text") == [("ix_apps_name",)]


def test_code_refuses_a_database_that_lacks_its_migrations(tree: Tree, empty: str) -> None:
    with pytest.raises(
        SchemaBehind, match=r"The database is behind: it was never migrated.*tollgate migrate"
    ):
        check(empty)
    upgrade(empty)
    check(empty)
    tree.add("9001", "pass")
    with pytest.raises(
        SchemaBehind,
        match=rf"The database is behind: it stands at revision {graph.head()}, and this code needs 9001",
    ):
        check(empty, versions=tree.versions)


def test_code_refuses_a_database_that_a_newer_release_migrated(tree: Tree, empty: str) -> None:
    tree.add("9001", "pass")
    upgrade(empty, scripts=tree.scripts)
    for refusing in (check, upgrade):
        with pytest.raises(
            SchemaAhead,
            match=rf"This code is behind: it knows revisions up to {graph.head()}.*stands at 9001",
        ):
            refusing(empty)
    old = Tree(REPOSITORY).start("check", empty)
    assert "This code is behind" in old.communicate(timeout=30)[1]
    assert old.returncode == 1


def test_code_of_the_release_before_goes_on_where_the_newer_schema_says_that_it_serves_it(
    tree: Tree, empty: str
) -> None:
    tree.add("9001", "pass", serves=(graph.head(),))
    upgrade(empty, scripts=tree.scripts)
    check(empty)
    assert upgrade(empty) == []
    check(empty, versions=tree.versions)
    tree.add("9002", "pass", serves=("9001",))
    upgrade(empty, scripts=tree.scripts)
    with pytest.raises(SchemaAhead):
        check(empty)


@pytest.mark.parametrize(
    "url", ["postgresql://me:secret@127.0.0.1:1/none", "postgresql://me:secret@host.invalid/x", "secret", ""]
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")  # for the URLs that name no server
    monkeypatch.setenv("PGPORT", "1")
    with pytest.raises((DatabaseUnreachable, AddressMalformed), match="DATABASE_URL") as refusal:
        check(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("words", [["api", "--port", "0"], ["ledger.drainer"]], ids=["api", "drainer"])
def test_a_process_refuses_to_start_on_a_schema_that_is_not_its_own(
    tree: Tree, empty: str, servers: Servers, tmp_path: Path, words: list[str]
) -> None:
    environment = (
        os.environ | servers.environment() | {"DATABASE_URL": empty, "TOLLGATE_JOURNAL": str(tmp_path)}
    )

    def start() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, env=environment, capture_output=True, check=False, text=True, timeout=30
        )

    behind = start()
    tree.add("9001", "pass")
    upgrade(empty, scripts=tree.scripts)
    ahead = start()
    for refused, side in ((behind, "The database is behind"), (ahead, "This code is behind")):
        assert refused.returncode == 1
        (sentence,) = refused.stderr.splitlines()
        assert side in sentence
