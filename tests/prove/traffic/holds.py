"""What the limits server holds of an app, against the books: spend + open holds, and slots."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import redis

from tests import databases

PICO = Decimal(10) ** 12  # the limits server counts in 1e-12 of the currency


@dataclass(frozen=True, slots=True)
class Holds:
    """spent: what counts against the budget. charged: by the ledger. Both in 1e-12 of the currency.

    holds: of calls that are open on the limits server, by call id; booked: those of them that the ledger
    knows. slots: taken now.
    """

    spent: int
    charged: int
    holds: dict[str, int]
    booked: set[str]
    slots: int

    def settled(self) -> bool:
        """Whether nothing is held for a call that has ended, and the sums agree to the last unit."""
        return not self.booked and not self.slots and self.spent == self.charged + sum(self.holds.values())

    def said(self) -> str:
        return (
            f"spent {self.spent}, charged {self.charged}, {len(self.holds)} calls hold "
            f"{sum(self.holds.values())} ({len(self.booked)} of them are booked), {self.slots} slots"
        )


def holds(limits_url: str, database_url: str, app_id: str) -> Holds:
    """Read by other means than the product's: its keys are named in docs/limits.md."""
    key = f"tollgate:{{{app_id}}}:"
    with contextlib.closing(redis.Redis.from_url(limits_url, socket_timeout=5)) as server:
        client: Any = server
        seconds, micros = client.time()
        open_calls = client.hgetall(f"{key}calls")
        spent = int(client.hget(f"{key}spent", "total") or 0)
        slots = client.zcount(f"{key}slots", f"({seconds * 1000 + micros // 1000}", "+inf")
    held = {id.decode(): int(record.rpartition(b" ")[2]) for id, record in open_calls.items()}
    known = databases.rows(database_url, "SELECT id::text FROM usage WHERE app_id = %s", app_id)
    (sums,) = databases.rows(
        database_url, "SELECT coalesce(sum(charge), 0) AS charged FROM usage WHERE app_id = %s", app_id
    )
    booked = held.keys() & {row["id"] for row in known}
    return Holds(spent, int(sums["charged"] * PICO), held, set(booked), slots)
