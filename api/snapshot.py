"""What every call reads, kept in memory and fresh: models, keys and prices.

One connection listens on the channel `tollgate` and reloads at once when something was changed. A poll every
POLL_SECONDS proves that the connection lives and finds changes that nobody announced. While Postgres is
away the last snapshot goes on serving, up to KEY_STALE_MAX.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable

import asyncpg

from api.access.directory import Access, Directory, load_directory, load_revoked
from api.access.lookup import KeyLookup
from engine.registry import Registry, load_registry
from ledger.prices import PriceBook, load_prices

log = logging.getLogger(__name__)

CHANNEL = "tollgate"
# The database announces the table that changed; anything else that is announced reloads everything.
PARTS = {
    "organisations": "directory",
    "apps": "directory",
    "api_keys": "directory",
    "limits": "directory",
    "budgets": "directory",
    "models": "registry",
    "versions": "registry",
    "replicas": "registry",
    "prices": "prices",
}
ALL_PARTS = frozenset(PARTS.values())
POLL_SECONDS = 5.0
KEY_STALE_MAX = 7200.0  # seconds without Postgres during which known keys are still served
ANSWER_SECONDS = 2.0  # a poll or connect that takes longer counts as a lost connection
# A directory is loaded whole. So that a large one does not take all of the time, the next load waits so
# many times what the last one took, but not longer than REST_MAX; what was revoked is taken out at once all
# the same.
REST_FACTOR = 2.0
REST_MAX = 20.0  # seconds
REVOKED_MARGIN = 600.0  # seconds; a revocation is dated by the start of its transaction
BACKOFF_FIRST = 0.05  # seconds
BACKOFF_MAX = 0.5  # seconds; short, because a revoked key works until the connection is back

# Rows written so far to each table that a snapshot is made of, counted by Postgres itself: it differs after
# any change, also one whose announcement was lost.
WRITES = """
    SELECT relname::text, n_tup_ins + n_tup_upd + n_tup_del AS rows FROM pg_stat_user_tables
    WHERE relname = ANY($1)
"""


class Snapshot:
    """Registry, directory and prices as one process sees them.

    registry, directory, prices: replaced whole at each reload; read them anew for each call.
    connected: the listening connection stands and what it announced was loaded.
    loaded_at: seconds since the epoch of the last load, None before the first.
    on_change: called without arguments after each load, in order; one that raises is logged and skipped.
    """

    def __init__(self, database_url: str) -> None:
        self.registry = Registry()
        self.directory = Directory()
        self.prices = PriceBook([])
        self.connected = False
        self.loaded_at: float | None = None
        self.on_change: list[Callable[[], None]] = []
        self._url = database_url
        self._lookup = KeyLookup(database_url)
        self._fresh_at = time.monotonic()  # when the database last answered
        self._writes: dict[str, int] = {}  # by part, as of its last load
        self._due: set[str] = set()  # parts to load
        self._wake = asyncio.Event()  # something is due, or the connection was lost
        self._loaded = asyncio.Event()
        self._directory_at = 0.0  # when the last whole load of the directory began
        self._directory_from = 0.0  # when the next may begin
        self._task: asyncio.Task[None] | None = None

    async def start(self, wait_seconds: float = 10.0) -> None:
        """Begins to keep fresh, and waits for the first load, but not longer than wait_seconds."""
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh(), name="snapshot")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await self._loaded.wait()

    async def stop(self) -> None:
        """Closes both connections. What was loaded stays readable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.connected = False
        await self._lookup.stop()

    def stale(self) -> bool:
        """True when cut off from Postgres for longer than KEY_STALE_MAX: known keys are then refused too."""
        return not self.connected and time.monotonic() - self._fresh_at > KEY_STALE_MAX

    async def look_up_key(self, key: bytes) -> Access | None:
        """Asks Postgres about a key that the directory does not know (just made, or never).

        Keys that come within 10 ms are asked for together; a negative is remembered for 1 s.
        Raises DirectoryUnavailable when Postgres is away.
        """
        access = await self._lookup.find(key)
        if access is not None:
            self._announced("api_keys")  # the directory should have known
        return access

    async def _keep_fresh(self) -> None:
        pause = BACKOFF_FIRST
        while True:
            began = time.monotonic()
            try:
                await self._listen()
            except Exception as error:
                # Whatever it was, the snapshot must not be left without anybody who keeps it fresh.
                if self.connected or (self.loaded_at is None and pause == BACKOFF_FIRST):
                    log.warning("snapshot: cut off from Postgres (%s)", type(error).__name__)
            self.connected = False
            if time.monotonic() - began > 2 * BACKOFF_MAX:
                pause = BACKOFF_FIRST
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(BACKOFF_MAX, pause * 2)

    async def _listen(self) -> None:
        """Serves one connection until it is lost, and raises then."""
        connection = await asyncpg.connect(
            self._url,
            timeout=ANSWER_SECONDS,
            command_timeout=ANSWER_SECONDS,
            server_settings={"application_name": "tollgate snapshot"},
        )
        try:
            connection.add_termination_listener(lambda _: self._wake.set())
            await connection.add_listener(CHANNEL, lambda *call: self._announced(call[3]))
            # Listening comes before the load, so that no change can fall between the two.
            self._due |= ALL_PARTS
            while not connection.is_closed():
                self._wake.clear()
                if self._due:
                    await self._load(connection)
                wait = self._directory_from - time.monotonic() if self._due else POLL_SECONDS
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it can swallow the cancellation that stop() sends.
                    async with asyncio.timeout(max(0.0, wait)):
                        await self._wake.wait()
                    continue
                if not self._due:
                    await self._poll(connection)
            raise ConnectionError("the connection was closed")
        finally:
            connection.terminate()

    def _announced(self, what: object) -> None:
        part = PARTS.get(str(what))
        self._due |= ALL_PARTS if part is None else {part}
        self._wake.set()

    async def _poll(self, connection: asyncpg.Connection) -> None:
        writes = await _written(connection)
        self._fresh_at = time.monotonic()
        self._due |= {part for part in ALL_PARTS if writes[part] != self._writes.get(part)}

    async def _load(self, connection: asyncpg.Connection) -> None:
        """Loads what is due; of the directory only revocations, while its last whole load is too recent."""
        due, self._due = self._due, set()
        try:
            writes = await _written(connection)
            if "registry" in due:
                self.registry = await load_registry(connection, self.registry)
            if "prices" in due:
                self.prices = await load_prices(connection)
            if "directory" in due:
                await self._load_directory(connection)
        except BaseException:
            self._due |= due
            raise
        self._writes |= {part: writes[part] for part in due - self._due}
        self._fresh_at = time.monotonic()
        self.loaded_at = time.time()
        if not self.connected:
            self.connected = True
            self._lookup.database_is_back()
            models, keys = len(self.registry.models), len(self.directory.accesses)
            log.info("snapshot: connected, %d models, %d keys", models, keys)
        self._loaded.set()
        for changed in self.on_change:
            try:
                changed()
            except Exception:
                log.exception("snapshot: a listener to changes failed")

    async def _load_directory(self, connection: asyncpg.Connection) -> None:
        began = time.monotonic()
        if self.directory.accesses:
            # A new key is found by look_up_key meanwhile; a revoked one must not wait for the load.
            await self._drop_revoked(connection, self.directory.accesses)
        if self.connected and began < self._directory_from:
            self._due.add("directory")
            return

        async def between(accesses: dict[bytes, Access]) -> None:
            if "directory" in self._due:
                await self._drop_revoked(connection, self.directory.accesses, accesses)

        self.directory = await load_directory(connection, between)
        ended = time.monotonic()
        self._directory_at = began
        self._directory_from = ended + min(REST_MAX, REST_FACTOR * (ended - began))

    async def _drop_revoked(self, connection: asyncpg.Connection, *directories: dict[bytes, Access]) -> None:
        since = time.monotonic() - self._directory_at + REVOKED_MARGIN
        for digest in await load_revoked(connection, since):
            for accesses in directories:
                accesses.pop(digest, None)


async def _written(connection: asyncpg.Connection) -> dict[str, int]:
    """Rows written so far to the tables of each part."""
    written = dict.fromkeys(ALL_PARTS, 0)
    for row in await connection.fetch(WRITES, list(PARTS)):
        written[PARTS[row["relname"]]] += row["rows"]
    return written
