"""Waiting for a state with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL = 0.01  # seconds


def until(look: Callable[[], T | None], what: str, within: float = 10.0) -> T:
    """Looks again and again until it sees something true, which it returns; fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if seen := look():
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"within {within} s: {what}")
        time.sleep(POLL)
