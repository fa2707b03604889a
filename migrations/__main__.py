"""`python -m migrations check-heads | upgrade | check`: for make, CI and containers.

The last two want DATABASE_URL.
"""

import os
import sys

from migrations import graph
from migrations.check import check
from migrations.errors import MigrationError


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")


def main(words: list[str]) -> int:
    try:
        match words:
            case ["check-heads"]:
                _say(f"One head: {graph.head()}.")
            case ["check"]:
                check(os.environ.get("DATABASE_URL", ""))
            case ["upgrade"]:
                from migrations.run import upgrade

                applied = upgrade(os.environ.get("DATABASE_URL", ""), say=_say)
                _say(f"Applied: {', '.join(applied)}." if applied else "Nothing to do.")
            case _:
                sys.stderr.write("python -m migrations check-heads | upgrade | check\n")
                return 2
    except MigrationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
