"""One connection for a subcommand, and what goes wrong with it as one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from api.errors import GatewayError
from engine.errors import EngineError
from ledger.errors import LedgerError
from migrations.check import address
from tollgate.errors import TollgateError, Unreachable
from tollgate.home import database_url

T = TypeVar("T")

CONNECT_SECONDS = 5.0


def with_database(work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    """What `work` returns, done on a connection to the database of `tollgate up` or DATABASE_URL.

    Raises TollgateError with the sentence of whatever `work` refused.
    """
    return asyncio.run(_with_database(database_url(), work))


async def _with_database(url: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    try:
        connection = await asyncpg.connect(
            url, timeout=CONNECT_SECONDS, server_settings={"application_name": "tollgate-cli"}
        )
    except ValueError as error:
        raise TollgateError(
            "DATABASE_URL is not an address like postgresql://USER:PASSWORD@HOST:PORT/NAME."
        ) from error
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unreachable(
            f"Postgres at {address(url)} does not take the connection ({error or type(error).__name__}): "
            "check DATABASE_URL and that the server runs."
        ) from error
    try:
        return await work(connection)
    except (LedgerError, GatewayError, EngineError) as error:
        raise TollgateError(str(error)) from error
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise TollgateError(
            "The database's schema is not of this release: run `tollgate migrate` first."
        ) from error
    finally:
        await connection.close(timeout=CONNECT_SECONDS)
