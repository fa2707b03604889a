"""Admissions whose app the limits server does not know (yet, or any more): it is told, then asked again."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Protocol

import asyncpg

from api.access.directory import Subject
from api.limits.census import POLL_SECONDS, Census
from api.limits.plan import Plan, key
from api.limits.scripts import OPEN
from api.limits.spent import SpentSource
from engine.errors import ValkeyError
from engine.valkey import ValkeyClient

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 3.0  # how long an admission waits for its app to become known
PAUSE_SECONDS = 0.5  # between tries that failed; admissions in between are turned away at once
USER_SPENT_SECONDS = 40 * 86400  # an end user's sums are forgotten after, and then read from the ledger again
EPOCH = date(1970, 1, 1)


class NotKnown(Exception):
    """The limits server cannot be told at the moment."""


class Parked(Protocol):
    """An admission that waits."""

    plan: Plan

    def again(self) -> None:
        """Ask the limits server once more."""

    def give_up(self) -> None:
        """Nobody can say."""


class Opening:
    """Tells the limits server what apps and end users have spent; one task for all who wait for one."""

    def __init__(
        self, client: ValkeyClient, census: Census, spent: SpentSource, announce: Callable[[], None]
    ) -> None:
        self._client, self._census, self._spent, self._announce = client, census, spent, announce
        self._sha = client.script(OPEN)
        self._parked: dict[tuple[str, bytes], list[Parked]] = {}
        self._failed_at: dict[tuple[str, bytes], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def park(self, call: Parked, subject: bytes, now: bytes) -> None:
        """Keep the admission until its app (or end user, by `subject`) is known. now: the server's, in s."""
        plan = call.plan
        name = (plan.app.id, plan.user if subject == b"user" else b"-")
        waiting = self._parked.get(name)
        if waiting is not None:
            waiting.append(call)
            return
        if self._client.loop.time() - self._failed_at.get(name, -PAUSE_SECONDS) < PAUSE_SECONDS:
            call.give_up()
            return
        self._parked[name] = [call]
        task = self._client.loop.create_task(
            self._open(name, plan, datetime.fromtimestamp(int(now), UTC).date())
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Turn away all that waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, name: tuple[str, bytes], plan: Plan, today: date) -> None:
        known = False
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._until_trusted()
                await self._tell(name, plan, today)
            known = True
        except (NotKnown, TimeoutError):
            pass
        except (OSError, ValkeyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("what app %s has spent is not known to the limits server: %s", name[0], error)
        finally:
            waiting = self._parked.pop(name)
            if known:
                self._failed_at.pop(name, None)
            else:
                self._failed_at[name] = self._client.loop.time()
            for call in waiting:
                if known:
                    call.again()
                else:
                    call.give_up()

    async def _until_trusted(self) -> None:
        if await self._census.call():
            self._announce()
            await self._census.call()
        while (wait_ms := self._census.wait_ms()) > 0:
            if wait_ms > PATIENCE_SECONDS * 1000:
                raise NotKnown
            await asyncio.sleep(min(POLL_SECONDS, wait_ms / 1000))
            await self._census.call()

    async def _tell(self, name: tuple[str, bytes], plan: Plan, today: date) -> None:
        app_id, user = name
        subject: Subject = "app" if user == b"-" else "end_user"
        pairs: list[bytes] = []
        for budget in plan.app.budgets:
            if budget.subject != subject:
                continue
            field, since = "total", None
            if budget.period == "day":
                field, since = f"day:{(today - EPOCH).days}", today
            elif budget.period == "month":
                field, since = f"month:{today:%Y%m}", today.replace(day=1)
            end_user = None if subject == "app" else plan.end_user
            spent = await self._spent.spent_of(app_id, end_user, budget.currency, since)
            pairs += [field.encode(), b"%d" % spent]
        keys = (key(app_id, "state"), key(app_id, "calls"), key(app_id, "spent", user))
        forget = b"0" if user == b"-" else b"%d" % USER_SPENT_SECONDS
        await self._client.ask(b"EVALSHA", self._sha, b"3", *keys, user, forget, *pairs)
