"""What the supervisor is told about one part of Tollgate: how to run it, when it is ready, when it stops."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tollgate.supervisor.process import Command


class Tier(enum.IntEnum):
    """Parts stop from the highest tier to the lowest, all of one tier at once."""

    DATABASE = 0
    STORES = 1
    ENGINE = 2
    BOOKS = 3
    API = 4


def always() -> bool:
    """Readiness of a part that can be asked nothing: it is ready when it runs."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One child process.

    prepare: makes what the process needs and says how to run it; called before each start, in a thread.
    is_ready: asks the running process; called again and again, in a thread.
    ready_line: what the process writes to its log when it is ready, for one that can be asked nothing.
    start_seconds: how long it may take to be ready; stop_seconds: to stop, before SIGKILL.
    """

    name: str
    tier: Tier
    prepare: Callable[[], Command]
    is_ready: Callable[[], bool] = always
    ready_line: bytes = b""
    start_seconds: float = 60.0
    stop_seconds: float = 10.0
