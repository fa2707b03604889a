"""The passwords of the embedded servers: made once, kept beside their data in a file of mode 0600."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

PASSWORD_BYTES = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """One password for each server; PostgreSQL has one for its superuser and one for the application."""

    postgres_superuser: str
    postgres: str
    broker: str
    limits: str
    cache: str


def passwords_in(folder: Path) -> Passwords:
    """Read `passwords.json` of a folder, or make it."""
    path = folder / "passwords.json"
    names = tuple(Passwords.__dataclass_fields__)
    try:
        known = json.loads(path.read_text())
    except FileNotFoundError:
        known = {}
    values = {name: known.get(name) or secrets.token_hex(PASSWORD_BYTES) for name in names}
    if values != known:
        write_private(path, json.dumps(asdict(Passwords(**values)), indent=2) + "\n")
    return Passwords(**values)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, so that a reader sees the old text or the new, whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
