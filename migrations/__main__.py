"""`python -m migrations check-heads | upgrade | check`: for make, CI and containers (DATABASE_URL where one is needed)."""

import os
import sys

from migrations import graph
from migrations.check import check
from migrations.errors import MigrationError


def main(words: list[str]) -> int:
    try:
        match words:
            case ["check-heads"]:
                print(f"One head: {graph.head()}.")
            case ["check"]:
                check(os.environ.get("DATABASE_URL", ""))
            case ["upgrade"]:
                from migrations.run import upgrade

                applied = upgrade(os.environ.get("DATABASE_URL", ""), say=print)
                print(f"Applied: {', '.join(applied)}." if applied else "Nothing to do.")
            case _:
                print("python -m migrations check-heads | upgrade | check", file=sys.stderr)
                return 2
    except MigrationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
