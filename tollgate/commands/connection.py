"""One database connection for one command, and every failure as one sentence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import asyncpg

from api.errors import GatewayError
from engine.errors import EngineError
from tollgate.errors import TollgateError
from tollgate.home import database_url

T = TypeVar("T")

CONNECT_SECONDS = 5.0


def in_database(work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    """What `work` returns over a connection to the database of this home or of DATABASE_URL.

    Raises TollgateError: for a refusal of the services with their own sentence, else saying what is wrong
    with the database, without its password.
    """
    url = database_url()

    async def run() -> T:
        connection = await asyncpg.connect(
            url, timeout=CONNECT_SECONDS, server_settings={"application_name": "tollgate command"}
        )
        try:
            return await work(connection)
        finally:
            await connection.close()

    try:
        return asyncio.run(run())
    except (GatewayError, EngineError) as error:
        raise TollgateError(str(error)) from None
    except asyncpg.UndefinedTableError:
        raise TollgateError(
            f"The database at {_place(url)} has no tables of Tollgate: run `tollgate migrate`."
        ) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError):
        raise TollgateError(
            f"The database at {_place(url)} refuses the user, password or database name: check DATABASE_URL."
        ) from None
    except (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
        raise TollgateError(
            f"The database at {_place(url)} cannot be reached: start it, or check DATABASE_URL."
        ) from None
    except (ValueError, asyncpg.InterfaceError):
        raise TollgateError(
            "DATABASE_URL is not an address like postgresql://USER:PASSWORD@HOST:PORT/NAME."
        ) from None


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
