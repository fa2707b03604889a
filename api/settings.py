"""What the API process is told by its environment and its command line; nothing else configures it."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from api.lane.lane import Patience


class SettingMissing(Exception):
    """A setting that the process cannot start without; the message says which."""


@dataclass(frozen=True, slots=True)
class Settings:
    """database_url is in libpq's form, limits_url and cache_url are redis:// addresses."""

    database_url: str
    limits_url: str
    cache_url: str
    journal: Path
    host: str
    port: int
    socket_fd: int | None
    grace_seconds: float
    strict_journal: bool
    patience: Patience


def read(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises SettingMissing; argparse itself ends the process on a wrong option."""
    parser = argparse.ArgumentParser(prog="python -m api", description="One API process of Tollgate.")
    parser.add_argument(
        "--fd", type=int, help="a listening socket that was inherited, in the place of --port"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--grace", type=float, default=10.0, metavar="SECONDS",
                        help="how long calls in flight may take to end at SIGTERM (default 10)")  # fmt: skip
    parser.add_argument("--strict-journal", action="store_true",
                        help="wait for the disk at each record, so that no crash loses one")  # fmt: skip
    parser.add_argument("--first-byte-timeout", type=float, default=600.0, metavar="SECONDS",
                        help="how long an engine may take to begin an answer (default 600)")  # fmt: skip
    parser.add_argument("--idle-timeout", type=float, default=60.0, metavar="SECONDS",
                        help="how long an engine may be silent within a stream (default 60)")  # fmt: skip
    parser.add_argument("--caller-timeout", type=float, default=60.0, metavar="SECONDS",
                        help="how long a caller may take nothing before it is cut (default 60)")  # fmt: skip
    options = parser.parse_args(arguments)

    def needed(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            raise SettingMissing(f"{name} is not set; the API needs its address ('tollgate up' sets it).")
        return value

    return Settings(
        needed("DATABASE_URL"),
        needed("LIMITS_URL"),
        needed("CACHE_URL"),
        Path(needed("TOLLGATE_JOURNAL")),
        options.host,
        options.port,
        options.fd,
        options.grace,
        options.strict_journal,
        Patience(options.first_byte_timeout, options.idle_timeout, options.caller_timeout),
    )
