"""Commands that read the books wait for the calls that have just ended."""

import asyncio
import json
import sys
from pathlib import Path

import asyncpg
import pytest

from ledger.arrival import arrived
from ledger.journal.writer import Journal
from tests.databases import rows
from tests.ledger.calls import closed, in_loop, never, nothing, opened, write_calls
from tests.ledger.draining import drain, drainer, give_price
from tollgate.cli import main
from tollgate.commands import ledger as commands
from tollgate.home import SERVER_VARIABLES
from tollgate.supervisor.lock import holding

LATE = (
    "tollgate: The latest calls are not all in the books yet; look again in a moment, and into "
    "logs/drainer.log if it stays so.\n"
)


@pytest.fixture(scope="module", autouse=True)
def _priced(database: str) -> None:
    give_price(database)


async def waited(database: str, folder: Path, within: float) -> bool:
    connection = await asyncpg.connect(database)
    try:
        return await arrived(connection, folder, within=within)
    finally:
        await connection.close()


def test_a_call_that_has_ended_is_waited_for_and_one_that_runs_is_not(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "journal"

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(folder, loop=loop)
        assert await waited(database, folder, 0.0)  # nothing is written yet
        ended, running = opened(), opened()
        for call in (ended, running):
            journal.open(call, nothing, never)
        await asyncio.sleep(0)
        assert await waited(database, folder, 0.0)  # both run
        written = loop.create_future()
        journal.close_call(closed(ended), lambda: written.set_result(None))
        await written
        assert not await waited(database, folder, 0.1)  # nobody drains
        with drainer(database, folder, tmp_path / "drainer.log"):
            assert await waited(database, folder, 20.0)
            assert rows(database, "SELECT id FROM usage WHERE id = %s", ended.id)
            journal.open(third := opened(), nothing, never)
            await asyncio.sleep(0)
            journal.close_call(closed(third), nothing)
            await asyncio.sleep(0)
            assert await waited(database, folder, 20.0)
            assert rows(database, "SELECT id FROM usage WHERE id = %s", third.id)
            journal.close_call(closed(running), nothing)
        await journal.stop()

    in_loop(work)


def test_what_is_no_journal_or_cannot_be_read_holds_nobody_up(database: str, tmp_path: Path) -> None:
    (tmp_path / "x.journal").write_bytes(b"C" * 100)
    (tmp_path / "host-1-1-000001.journal").mkdir()
    assert asyncio.run(waited(database, tmp_path, 0.0))


@pytest.mark.parametrize("words", [("spend",), ("usage", "--json"), ("verify",)])
def test_the_commands_say_when_the_latest_calls_are_not_in_the_books(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("TOLLGATE_HOME", str(tmp_path))
    for variable in SERVER_VARIABLES:
        monkeypatch.setenv(variable, database)
    monkeypatch.setattr(sys, "argv", ["tollgate", "ledger", *words])
    monkeypatch.setattr(commands, "ARRIVAL_SECONDS", 0.1)
    call = opened()
    write_calls(tmp_path / "journal", [call], [closed(call)])

    def ready(url: str) -> None:
        written = dict.fromkeys(SERVER_VARIABLES.values(), url)
        (tmp_path / "ready.json").write_text(json.dumps(written))

    def said() -> str:
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().err

    assert said() == ""  # no `up` runs in this home: these journals are not of this database
    ready(database)
    assert said() == ""  # this one was killed
    with holding(tmp_path):
        ready(f"{database}?elsewhere")
        assert said() == ""
        ready(database)
        assert said() == LATE
        drain(database, tmp_path / "journal")
        assert said() == ""
