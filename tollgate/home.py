"""TOLLGATE_HOME: where the state of one installation lies, and how other commands find its servers.

logs/           one file for each process
postgres/ broker/ limits/ cache/    data of the embedded servers
journal/        usage on its way to the ledger
passwords.json  of the embedded servers
keys.json       the app key, the admin key and the probe's key
children.json   the processes that run now, so that the next start can end what a killed one left
ready.json      there while all is up: addresses, keys and pids, for scripts
lock            held while `tollgate up` runs
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TypedDict, cast

from tollgate.errors import TollgateError

SERVER_VARIABLES = {
    "DATABASE_URL": "database_url",
    "BROKER_URL": "broker_url",
    "LIMITS_URL": "limits_url",
    "CACHE_URL": "cache_url",
}


class Ready(TypedDict):
    """The content of ready.json. engines: base addresses; pids: by name, each leads its own process group."""

    api: str
    app_key: str
    admin_key: str
    database_url: str
    broker_url: str
    limits_url: str
    cache_url: str
    engines: list[str]
    pids: dict[str, int]


def home_folder() -> Path:
    """TOLLGATE_HOME, by default `.tollgate` in the checkout (or here, for an installed package)."""
    named = os.environ.get("TOLLGATE_HOME")
    return Path(named).expanduser().absolute() if named else default_home()


def default_home() -> Path:
    """The home of whoever sets no TOLLGATE_HOME."""
    checkout = Path(__file__).resolve().parent.parent
    base = checkout if (checkout / "pyproject.toml").exists() else Path.cwd()
    return base / ".tollgate"


def read_ready(home: Path) -> Ready | None:
    """What a running `tollgate up` says of itself; None when none is up in this home."""
    try:
        return cast("Ready", json.loads((home / "ready.json").read_text()))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None


def own_journal() -> Path | None:
    """The journal of the `tollgate up` that runs in this home, if DATABASE_URL is its database; else None."""
    home = home_folder()
    ready = running(home)
    if ready is None or os.environ.get("DATABASE_URL") != ready["database_url"]:
        return None
    return home / "journal"


def running(home: Path) -> Ready | None:
    """What the `tollgate up` that runs in this home says of itself. One that was killed says nothing more."""
    ready = read_ready(home)
    return ready if ready is not None and _is_locked(home / "lock") else None


def _is_locked(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find_servers() -> None:
    """Set the variables that name the servers from ready.json, where the environment does not have them."""
    ready = running(home_folder())
    if ready is None:
        return
    for variable, key in SERVER_VARIABLES.items():
        os.environ.setdefault(variable, str(cast("dict[str, object]", ready)[key]))


def database_url() -> str:
    """DATABASE_URL, or the database of the `tollgate up` that runs in this home."""
    find_servers()
    url = os.environ.get("DATABASE_URL")
    if not url:
        raise TollgateError(
            f"No database is known: start `tollgate up` (none is up in {home_folder()}) or set DATABASE_URL."
        )
    return url
