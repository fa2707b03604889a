"""Environments of their own for what the bench compares with and draws with, made once from exact pins."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = Path(__file__).resolve().parent / "pins"


def environment(name: str) -> Path:
    """The folder of programs of `.venvs/NAME`, which holds exactly what bench/pins/NAME.txt says."""
    folder, pins = ROOT / ".venvs" / name, PINS / f"{name}.txt"
    made_from = folder / "made-from.txt"
    if not made_from.exists() or made_from.read_text() != pins.read_text():
        print(f"bench: making .venvs/{name} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run(
            [
                *(folder / "bin" / "python", "-m", "pip", "install", "-qq", "--no-deps"),
                *("--disable-pip-version-check", "-r", pins),
            ],
            check=True,
        )
        made_from.write_text(pins.read_text())
    return folder / "bin"


def pinned(name: str, package: str) -> str:
    """The version of a package in bench/pins/NAME.txt."""
    lines = (PINS / f"{name}.txt").read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))
