"""Ends the holds of calls whose process is gone, once the books say what became of the call.

A hold never ends by time alone: either the call has its usage row (the drainer has read the journal of the
process that died, so the charge is known), or it left no trace in any journal and all of its process's are
read to their end. One process at a time looks, once per lease.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg

from api.limits.census import Census
from api.limits.plan import key
from api.limits.spent import Charge, SpentSource
from engine.errors import ValkeyError
from engine.valkey import ValkeyClient

log = logging.getLogger(__name__)

LOCK = b"tollgate:{limits}:reconciling"
PAGE = b"200"  # entries that the server is asked for at a time
CALLS_PER_ROUND = 5000


@dataclass(frozen=True, slots=True)
class Orphan:
    """An open call of a process that is gone. where, tokens, hold: as its admission left them."""

    app_id: str
    call_id: str
    where: bytes
    owner: bytes
    user: bytes
    tokens: int
    hold: int


class Reconciler:
    """`settle`: the sha of the settle script."""

    def __init__(
        self, client: ValkeyClient, census: Census, spent: SpentSource, settle: bytes, lease_ms: int
    ) -> None:
        self._client, self._census, self._spent = client, census, spent
        self._settle, self._lease_ms = settle, lease_ms

    async def round(self) -> int:
        """Look once, unless another process does. How many calls were settled. Raises nothing."""
        try:
            lock_ms = b"%d" % (self._lease_ms * 9 // 10)
            if await self._client.ask(b"SET", LOCK, self._census.name, b"NX", b"PX", lock_ms) != b"OK":
                return 0
            orphans = await self._orphans()
            if not orphans:
                return 0
            owners = {orphan.call_id: orphan.owner.decode() for orphan in orphans}
            charges = await self._spent.charges_of(owners)
            decided = [orphan for orphan in orphans if orphan.call_id in charges]
            for orphan in decided:
                await self._end(orphan, charges[orphan.call_id])
        except (OSError, ValkeyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("calls of processes that are gone could not be settled: %s", error)
            return 0
        if decided:
            log.info("%d calls of processes that are gone were settled by the books", len(decided))
        return len(decided)

    async def _orphans(self) -> list[Orphan]:
        alive = {self._census.name, *self._census.peers}
        found: list[Orphan] = []
        async for page in self._pages(b"SCAN", b"MATCH", b"tollgate:{*}:calls", b"COUNT", PAGE):
            for name in page:
                app_id = name[len(b"tollgate:{") : -len(b"}:calls")].decode()
                async for pairs in self._pages(b"HSCAN", name, b"COUNT", PAGE):
                    for call_id, record in zip(pairs[::2], pairs[1::2], strict=True):
                        where, owner, user, tokens, hold = record.split(b" ")
                        if owner not in alive:
                            numbers = int(tokens), int(hold)
                            found.append(Orphan(app_id, call_id.decode(), where, owner, user, *numbers))
                if len(found) >= CALLS_PER_ROUND:
                    return found
        return found

    async def _pages(self, command: bytes, *words: bytes) -> AsyncIterator[list[bytes]]:
        """What SCAN, or HSCAN of the first word, finds; some may come twice."""
        names = words[:1] if command == b"HSCAN" else ()
        cursor = b"0"
        while True:
            reply = await self._client.ask(command, *names, cursor, *words[len(names) :])
            assert isinstance(reply, list)
            cursor, page = reply
            yield page
            if cursor == b"0":
                return

    async def _end(self, orphan: Orphan, charge: Charge) -> None:
        app_id, user = orphan.app_id, orphan.user
        keys = [key(app_id, what) for what in ("state", "ring", "calls", "slots", "spent")]
        if user != b"-":
            keys += [key(app_id, what, user) for what in ("state", "ring", "slots", "spent")]
        more_tokens, more_money = charge.tokens - orphan.tokens, charge.amount - orphan.hold
        last = b"%b %b %d 0 %d" % (orphan.call_id.encode(), orphan.where, more_tokens, more_money)
        await self._client.ask(b"EVALSHA", self._settle, b"%d" % len(keys), *keys, b"11", last)
