"""Keys that the directory does not know yet, asked of Postgres: together, seldom, and never for long."""

import asyncio
import time
from hashlib import sha256

import asyncpg

from api.access.directory import Access, load_accesses
from api.errors import DirectoryUnavailable

BATCH_SECONDS = 0.01  # keys that arrive within this time are asked for in one query
BATCH_MAX = 1000  # keys in one query; more than that at once are told to come back
NEGATIVE_SECONDS = 1.0  # how long "no such key" is remembered
NEGATIVE_MAX = 10_000  # remembered negatives
ANSWER_SECONDS = 2.0  # a database that takes longer counts as away
REST_SECONDS = 0.25  # after a failed connect, answers come from this memory alone


class KeyLookup:
    """Asks Postgres about single keys over a connection of its own."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: asyncpg.Connection | None = None
        self._waiting: dict[bytes, asyncio.Future[Access | None]] = {}
        self._negatives: dict[bytes, float] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._rest_until = 0.0

    async def find(self, key: bytes) -> Access | None:
        """The key's access, or None when there is none. Raises DirectoryUnavailable when nobody can tell."""
        digest = sha256(key).digest()
        now = time.monotonic()
        known_bad_until = self._negatives.get(digest)
        if known_bad_until is not None:
            if known_bad_until > now:
                return None
            del self._negatives[digest]
        future = self._waiting.get(digest)
        if future is None:
            if len(self._waiting) >= BATCH_MAX or now < self._rest_until:
                raise DirectoryUnavailable
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            if not self._waiting:
                loop.call_later(BATCH_SECONDS, self._ask)
            self._waiting[digest] = future
        # One caller that leaves must not take the answer from the others who wait for it.
        return await asyncio.shield(future)

    def database_is_back(self) -> None:
        """Somebody else has reached it: the next key is asked for at once."""
        self._rest_until = 0.0

    async def stop(self) -> None:
        """Ends what is still being asked and closes the connection."""
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        self._settle(self._waiting, None)
        self._waiting = {}
        self._drop()

    def _ask(self) -> None:
        batch, self._waiting = self._waiting, {}
        if not batch:
            return
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, batch: dict[bytes, asyncio.Future[Access | None]]) -> None:
        found: dict[bytes, Access] | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                found = await self._load(list(batch))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._drop()
            self._rest_until = time.monotonic() + REST_SECONDS
        finally:
            self._settle(batch, found)

    async def _load(self, digests: list[bytes]) -> dict[bytes, Access]:
        if self._connection is not None and not self._connection.is_closed():
            try:
                return await load_accesses(self._connection, digests)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
                # The server was restarted since the last question: one fresh connection may do.
                self._drop()
        self._connection = await asyncpg.connect(
            self._url, timeout=ANSWER_SECONDS, server_settings={"application_name": "tollgate key look-up"}
        )
        return await load_accesses(self._connection, digests)

    def _settle(
        self, batch: dict[bytes, asyncio.Future[Access | None]], found: dict[bytes, Access] | None
    ) -> None:
        now = time.monotonic()
        for digest, future in batch.items():
            if found is not None and digest not in found:
                self._remember(digest, now)
            if future.done():
                continue
            if found is None:
                future.set_exception(DirectoryUnavailable())
                future.exception()  # a caller may have left: nobody is to be told that it was never read
            else:
                future.set_result(found.get(digest))

    def _remember(self, digest: bytes, now: float) -> None:
        if len(self._negatives) >= NEGATIVE_MAX:
            self._negatives = {d: until for d, until in self._negatives.items() if until > now}
            if len(self._negatives) >= NEGATIVE_MAX:
                return
        self._negatives[digest] = now + NEGATIVE_SECONDS

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()
