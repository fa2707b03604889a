"""Migrations: three starters at once, two heads refused, a re-run after a kill half-way, old and new code.

These are behaviours that the test suite holds too; the proof runs them by themselves and names each.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.prove.report import Report

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = ("test_starters.py", "test_heads.py", "test_lock_timeout.py")
MOST_SECONDS = 500.0


def run(short: bool, seed: int) -> Report:
    report = Report()
    with TemporaryDirectory(prefix="tollgate-migrations-") as folder:
        results = Path(folder) / "results.xml"
        words = [f"tests/migrations/{name}" for name in FILES]
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, f"--junitxml={results}"],
            cwd=CHECKOUT,
            stdout=subprocess.DEVNULL,
            timeout=MOST_SECONDS,
            check=False,
        )
        for case in ElementTree.parse(results).iter("testcase"):
            wrong = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            report.claim(case.attrib["name"].removeprefix("test_").replace("_", " "), not wrong, *wrong)
    return report
