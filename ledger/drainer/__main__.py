"""`python -m ledger.drainer`: reads the folder TOLLGATE_JOURNAL and writes to DATABASE_URL until SIGTERM.

With --once it writes what is there and exits: 0 when all of it is in the books, 1 when Postgres was away.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from ledger.drainer.books import Books
from ledger.drainer.drain import Drainer
from ledger.drainer.folder import JournalFolder
from ledger.drainer.stopping import Stopping
from ledger.errors import DrainerRunning
from migrations.check import check
from migrations.errors import DatabaseUnreachable, MigrationError

GRACE_SECONDS = 15.0  # a Postgres that does not answer does not hold up the end for longer

log = logging.getLogger("ledger.drainer")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ledger.drainer", description=__doc__)
    parser.add_argument("--once", action="store_true", help="write what is there, then exit")
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        help="seconds to end in at SIGTERM (default %(default)s)",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        database_url, journal = os.environ["DATABASE_URL"], Path(os.environ["TOLLGATE_JOURNAL"])
    except KeyError as missing:
        return _refuse(f"{missing.args[0]} is not set: the drainer reads its configuration from it.")

    stopping = Stopping(options.grace)
    try:
        folder = JournalFolder(journal)
    except DrainerRunning as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"The journal folder {journal} cannot be used: {error.strerror}.")
    try:
        check(database_url)
    except DatabaseUnreachable as error:
        if options.once:
            return _refuse(str(error))
        log.error("%s Until then calls stay in the journal.", error)
    except MigrationError as error:
        return _refuse(str(error))

    books = Books(database_url)
    drainer = Drainer(folder, books, stopping)
    log.info("reading %s", journal)
    if options.once:
        return 0 if drainer.drain() else 1
    drainer.run()
    log.info("stopped: %d calls written", books.calls)
    return 0


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
