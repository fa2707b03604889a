"""What the bench measures: one file per peer, found by its name.

Each module has `TITLE` (name and version for the table) and `running(stage)`, a context manager that starts
the peer before the stage's engines, pinned to the gateway's core, and yields a Target.
"""

import contextlib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.processes import Cores


@dataclass(frozen=True)
class Stage:
    """Where a peer is started: before which engines (base addresses), with which folder for its logs."""

    engines: list[str]
    folder: Path
    cores: Cores


@dataclass(frozen=True)
class Target:
    """A started peer.

    pid: the process on the gateway's core. beside: servers that work for it, whose CPU is shown too.
    books: called with the number of calls asked of it, after the runs; says what is wrong with the books.
    """

    url: str
    pid: int
    key: str = "sk-bench"
    beside: dict[str, int] = field(default_factory=dict)
    books: Callable[[int], list[str]] = lambda asked: []


class Peer(Protocol):
    TITLE: str

    def running(self, stage: Stage) -> contextlib.AbstractContextManager[Target]: ...


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Peer:
    peer: Peer = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return peer
