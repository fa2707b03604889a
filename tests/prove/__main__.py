"""`python -m tests.prove [NAME ...] [--short] [--seed N] [--list]`: runs proofs and prints one report.

The exit code is 1 when a claim failed or a proof broke. The report is also kept in prove-report/report.txt.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import platform
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType

import tests.prove
from tests.prove.report import Report

NO_PROOFS = {"__main__", "report"}
KEPT = Path(__file__).resolve().parents[2] / "prove-report" / "report.txt"


def names() -> list[str]:
    """The proofs there are."""
    return sorted(
        found.name
        for found in pkgutil.iter_modules(tests.prove.__path__)
        if not found.ispkg and found.name not in NO_PROOFS
    )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description="Run the proofs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--short", action="store_true", help="their short forms")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    parser.add_argument("--list", action="store_true", help="say which there are")
    given = parser.parse_args(words)
    unknown = sorted(set(given.names) - set(names()))
    if unknown:
        parser.error(f"no proof is named {', '.join(unknown)}; there are: {', '.join(names())}")
    if given.list:
        for name in names():
            print(f"{name:<16}{_title(_module(name))}")
        return 0
    text = [f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}, {platform.node()}, seed {given.seed}", ""]
    print(text[0], flush=True)
    broken = []
    for name in given.names or names():
        print(f"running {name} ...", file=sys.stderr, flush=True)
        lines, holds = _run(name, given.short, given.seed)
        print("\n".join(["", *lines]), flush=True)
        text += [*lines, ""]
        if not holds:
            broken.append(name)
    chosen = len(given.names or names())
    text.append(f"{chosen - len(broken)} passed, {len(broken)} failed")
    print(f"\n{text[-1]}", flush=True)
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text("\n".join(text) + "\n")
    return 1 if broken else 0


def _run(name: str, short: bool, seed: int) -> tuple[list[str], bool]:
    began = time.monotonic()
    try:
        module = _module(name)
        report: Report = module.run(short=short, seed=seed)
    except Exception:
        return [f"{name}: broke", traceback.format_exc().rstrip()], False
    took = f"{name}: {_title(module)} ({'short form, ' if short else ''}{time.monotonic() - began:.0f} s)"
    return [took, *(f"  {line}" for line in report.lines)], report.holds


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.prove.{name}")


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
