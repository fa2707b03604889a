"""UUIDv7 ids (RFC 9562): the first 48 bits are milliseconds since the epoch, so an id names its month
partition.

`new_id()` is called once per call on the hot path and must stay below one microsecond: the random digits
are drawn from the operating system in blocks, and the time is formatted once per millisecond. Ids are
names, not secrets.
"""

import os
import time
from datetime import UTC, datetime

_COUNTER_START_BITS = (
    0x3FF  # the counter starts below 1,024: room for 3,072 ids before the clock is run ahead of
)
_COUNTER_HEX = [f"{counter:03x}" for counter in range(4096)]
_TAIL = 15  # random hex digits in one id: 60 bits
_BLOCK_BYTES = 512 * _TAIL


class IdSource:
    """Ids that only grow: by time, then by a 12-bit counter that starts at random in each millisecond.

    Two sources never meet: 60 bits of each id are random.
    """

    __slots__ = ("_at", "_block", "_counter", "_ms", "_prefix")

    def __init__(self) -> None:
        self._ms = -1
        self._counter = 0
        self._prefix = ""
        self._block = ""
        self._at = 0

    def next(self, now_ms: int) -> str:
        """An id of `now_ms` (milliseconds since the epoch), or later if that is not after the last one."""
        at = self._at
        if at >= len(self._block):
            self._block = os.urandom(_BLOCK_BYTES).hex()
            at = 0
        self._at = end = at + _TAIL
        tail = self._block[at:end]
        if now_ms > self._ms:
            self._start(now_ms, tail)
        elif self._counter > 4095:
            self._start(self._ms + 1, tail)
        counter = self._counter
        self._counter = counter + 1
        return f"{self._prefix}{_COUNTER_HEX[counter]}-8{tail[:3]}-{tail[3:]}"

    def next_at(self, ms: int) -> str:
        """An id of exactly `ms`, also when that lies before the last one."""
        if ms != self._ms or self._counter > 4095:
            self._ms = -1
        return self.next(ms)

    def _start(self, ms: int, tail: str) -> None:
        self._ms = ms
        self._prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
        self._counter = int(tail[:3], 16) & _COUNTER_START_BITS


_clock = IdSource()
_given = IdSource()


def _start_anew() -> None:
    global _clock, _given
    _clock, _given = IdSource(), IdSource()


# A forked child must not hand out its parent's random digits.
os.register_at_fork(after_in_child=_start_anew)


def new_id(now_ms: int | None = None) -> str:
    """A new id as canonical lower-case text.

    Without an argument ids grow within the process, also when the clock steps back. With `now_ms`
    (milliseconds since the epoch) the id carries exactly that time.
    """
    if now_ms is None:
        return _clock.next(time.time_ns() // 1_000_000)
    return _given.next_at(now_ms)


def time_ms(id: str) -> int:
    """Milliseconds since the epoch that a UUIDv7 carries."""
    return int(id[:8] + id[9:13], 16)


def month_of(id: str) -> tuple[int, int]:
    """(year, month) in UTC of a UUIDv7: the partition that its row belongs to.

    Raises ValueError for an id that was not made by a clock (a year past 9999).
    """
    try:
        when = datetime.fromtimestamp(time_ms(id) // 1000, UTC)
    except (OverflowError, OSError, ValueError) as error:
        raise ValueError(f"{id} carries no time") from error
    return when.year, when.month
