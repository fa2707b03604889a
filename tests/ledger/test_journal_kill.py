"""A process that dies by kill -9, at any moment, takes nothing with it that it had acted on."""

import collections
import random
import subprocess
import sys
import time
from pathlib import Path

from ledger.journal.records import CloseRecord, OpenRecord
from tests.ledger.calls import records

KILLS = 12


def run_until_killed(folder: Path, seconds: float) -> list[tuple[str, str]]:
    """(kind, id) of all that the writer was told to be written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.dying_writer", str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    rest = process.stdout.read()
    process.wait()
    lines = (first + rest).split("\n")[:-1]  # what follows the last line end was cut by the kill
    return [(kind, id) for kind, id in (line.split(" ") for line in lines)]


def test_every_record_that_was_said_to_be_written_is_there_once_after_kill_9(tmp_path: Path) -> None:
    dice = random.Random(11)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        said = run_until_killed(folder, dice.uniform(0, 0.15))
        found = records(folder)
        opens = collections.Counter(record.id for record in found if isinstance(record, OpenRecord))
        closes = collections.Counter(record.id for record in found if isinstance(record, CloseRecord))
        assert max(opens.values(), default=0) <= 1
        assert max(closes.values(), default=0) <= 1
        assert closes.keys() <= opens.keys()
        for kind, id in said:
            assert kind == "c" or id in opens
            assert kind == "o" or id in closes
