"""The few connections that admin routes share; the lane and the snapshot have none of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg

from api.errors import DatabaseUnavailable

POOL_MAX = 4  # connections per API process
ANSWER_SECONDS = 10.0  # a statement that takes longer is given up
CONNECT_SECONDS = 2.0

# Postgres is away, starting, stopping or full: nothing that the caller did.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
)


class Database:
    """A pool that is made at the first use, so that a process starts and serves while Postgres is away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for one request. Raises DatabaseUnavailable when Postgres is away, also half-way."""
        try:
            pool = await self._open()
            async with pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection  # type: ignore[misc]  # a proxy with the connection's methods
        except AWAY:
            raise DatabaseUnavailable from None

    async def close(self) -> None:
        """Closes all connections."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None

    async def _open(self) -> asyncpg.Pool:
        async with self._lock:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=POOL_MAX,
                    timeout=CONNECT_SECONDS,
                    command_timeout=ANSWER_SECONDS,
                    server_settings={"application_name": "tollgate admin"},
                )
            return self._pool
