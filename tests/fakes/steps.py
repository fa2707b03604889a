"""The steps that scripts of the scripted engine are made of."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Write:
    """Bytes, written in pieces that end at each of `cuts` (positions in `data`)."""

    data: bytes
    cuts: tuple[int, ...] = ()

    def pieces(self) -> list[bytes]:
        edges = [0, *self.cuts, len(self.data)]
        return [self.data[a:b] for a, b in itertools.pairwise(edges) if b > a]


def byte_by_byte(data: bytes) -> Write:
    return Write(data, tuple(range(1, len(data))))


@dataclass(frozen=True)
class Pause:
    """Waits for `engine.go(name)`, which may also have come before."""

    name: str


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Repeat:
    """Writes `data` `times` times, no faster than the peer reads."""

    data: bytes
    times: int
    between: float = 0.0  # seconds


@dataclass(frozen=True)
class Close:
    """Closes the connection in order (FIN)."""


@dataclass(frozen=True)
class Reset:
    """Breaks the connection (RST)."""


@dataclass(frozen=True)
class Hold:
    """Keeps the connection open and says nothing until the peer closes it."""


Step = bytes | Write | Pause | Wait | Repeat | Close | Reset | Hold
Script = Sequence[Step]
