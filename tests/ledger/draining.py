"""Runs the real drainer."""

import os
import subprocess
import sys
from pathlib import Path


def environment(database_url: str, folder: Path) -> dict[str, str]:
    return os.environ | {"DATABASE_URL": database_url, "TOLLGATE_JOURNAL": str(folder)}


def drain(database_url: str, folder: Path) -> str:
    """One pass of a drainer process until all is written; its log."""
    done = subprocess.run(
        [sys.executable, "-m", "ledger.drainer", "--once"],
        env=environment(database_url, folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
