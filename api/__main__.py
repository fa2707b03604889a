"""`python -m api`: one API process."""

import logging
import sys

from api import settings
from api.process import run
from ledger.errors import JournalFull
from migrations.errors import MigrationError


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(settings.read())
    except (settings.SettingMissing, MigrationError, JournalFull) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
