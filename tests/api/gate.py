"""A limiter as a test uses it: awaited, beside others on one server, with a clock that can be set."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import date

import pytest

import api.limits.limiter
import api.limits.opening
from api.access.directory import App, Budget, Limit
from api.limits.decisions import Admitted, Decision, Refused, Reservation
from api.limits.limiter import Limiter
from api.limits.spent import Charge
from engine.valkey import ValkeyClient
from ledger.ids import new_id
from ledger.money import UNIT
from tests.own_valkey import ask, eventually

CENT = UNIT // 100
_numbers = itertools.count()


@dataclass
class Spent:
    """What the ledger would say; `fails` makes it unreachable."""

    amounts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    charges: dict[str, Charge] = field(default_factory=dict)  # of ended calls
    asked: list[tuple[str, str | None, str, date | None]] = field(default_factory=list)
    fails: bool = False

    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        self.asked.append((app_id, end_user, currency, since))
        if self.fails:
            raise ConnectionRefusedError("the database is away")
        return self.amounts.get((app_id, end_user), 0)

    async def charges_of(self, owners: Mapping[str, str]) -> dict[str, Charge]:
        if self.fails:
            raise ConnectionRefusedError("the database is away")
        return {call_id: self.charges[call_id] for call_id in owners if call_id in self.charges}


@dataclass
class Gate:
    """One process's limiter."""

    client: ValkeyClient
    limiter: Limiter
    spent: Spent

    async def admit(
        self, app: App, *, tokens: int = 0, hold: int = 0, end_user: str | None = None, **more: int
    ) -> tuple[str, Decision]:
        """One call: its id, and what the limiter said."""
        call_id = new_id()
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        reservation = Reservation(call_id, app, end_user, tokens, hold, "USD", **more)
        self.limiter.admit(reservation, decided.set_result)
        return call_id, await decided

    async def admitted(self, app: App, *, tokens: int = 0, hold: int = 0, end_user: str | None = None) -> str:
        """A call that must pass; its id."""
        call_id, decision = await self.admit(app, tokens=tokens, hold=hold, end_user=end_user)
        assert isinstance(decision, Admitted), decision
        return call_id

    async def refused(
        self, app: App, *, tokens: int = 0, hold: int = 0, end_user: str | None = None, **more: int
    ) -> Refused:
        """A call that must be refused."""
        _, decision = await self.admit(app, tokens=tokens, hold=hold, end_user=end_user, **more)
        assert isinstance(decision, Refused), decision
        return decision

    async def settle(self, call_id: str, *, spent: int = 0, tokens: int = 0) -> None:
        self.limiter.settle(call_id, spent=spent, tokens=tokens)
        await self.all_settled()

    async def all_settled(self) -> None:
        await eventually(lambda: self.limiter.unsettled == 0, "settlements are confirmed")

    async def used(self, app: App, field_name: str = "total") -> int:
        """What the limits server holds as spent and held."""
        reply = await ask(self.client, "HGET", f"tollgate:{{{app.id}}}:spent", field_name)
        assert isinstance(reply, bytes), reply
        return int(reply)


@contextlib.asynccontextmanager
async def gate(
    url: str, *, lease: float = 30.0, grace: float = 0.0, spent: Spent | None = None, owner: str | None = None
) -> AsyncIterator[Gate]:
    """A limiter of its own, as one API process has; all of it must be gone afterwards."""
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    client = ValkeyClient(url, loop, name="limits")
    spent = spent or Spent()
    limiter = Limiter(
        client, loop=loop, spent=spent, lease_seconds=lease, grace_seconds=grace,
        owner=owner or f"test-{next(_numbers)}",
    )  # fmt: skip
    try:
        yield Gate(client, limiter, spent)
    finally:
        await limiter.stop()
        await client.stop()
        assert asyncio.all_tasks() - before <= {asyncio.current_task()}


def an_app(*rules: Limit | Budget) -> App:
    """A new app with these limits and budgets."""
    limits = tuple(rule for rule in rules if isinstance(rule, Limit))
    budgets = tuple(rule for rule in rules if isinstance(rule, Budget))
    return App(new_id(), new_id(), "app", limits, budgets)


def requests(value: int, window: str = "minute", subject: str = "app") -> Limit:
    return Limit(subject, "requests", window, value)  # type: ignore[arg-type]


def tokens(value: int, window: str = "minute", subject: str = "app") -> Limit:
    return Limit(subject, "tokens", window, value)  # type: ignore[arg-type]


def slots(value: int, subject: str = "app") -> Limit:
    return Limit(subject, "concurrency", "none", value)  # type: ignore[arg-type]


def budget(
    amount: int, period: str = "total", subject: str = "app", *, hard: bool = True, currency: str = "USD"
) -> Budget:
    return Budget(subject, period, amount, currency, hard)  # type: ignore[arg-type]


class SetClock:
    """The limits server's clock in a test's hand: its scripts read a key in the place of TIME."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float = 1_800_000_000.0) -> None:
        reads = b"{call('GET', 'clock:s'), call('GET', 'clock:us')}"
        for module, name in (
            (api.limits.limiter, "ADMIT"),
            (api.limits.limiter, "RENEW"),
        ):
            source: bytes = getattr(module, name)
            assert b"call('TIME')" in source
            monkeypatch.setattr(module, name, source.replace(b"call('TIME')", reads))
        self.now = now

    async def set(self, client: ValkeyClient, now: float) -> None:
        self.now = now
        seconds = int(now)
        micros = round((now - seconds) * 1e6)
        await ask(client, "MSET", "clock:s", str(seconds), "clock:us", str(micros))

    async def advance(self, client: ValkeyClient, seconds: float) -> None:
        await self.set(client, self.now + seconds)
