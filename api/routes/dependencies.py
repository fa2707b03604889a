"""What handlers ask for: the access of the key, the snapshot, a connection; and bodies read strictly."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

import asyncpg
import orjson
from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute

from api.access.check import find_access, require_scope
from api.access.directory import Access
from api.database import Database
from api.errors import InvalidRequest, quoted
from api.snapshot import Snapshot

PAGE_DEFAULT = 100
PAGE_MAX = 500


class StrictRequest(Request):
    """A request whose JSON is UTF-8 without lone surrogates, NaN or infinities."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())


class StrictRoute(APIRoute):
    """A route whose handler gets its body through StrictRequest, and none in which a key stands twice."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict_handler(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            # Before the framework does, which would call every failure to read a bad body.
            refuse_repeated_keys(await strict.body())
            return await handler(strict)

        return strict_handler


def refuse_repeated_keys(body: bytes) -> None:
    """At any depth. What is no JSON at all is left to whoever reads it. Raises InvalidRequest."""

    def once_each(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                shown = quoted(key)
                raise InvalidRequest(f"The key '{shown}' stands twice in the body.", shown, "duplicate_key")
            seen.add(key)

    try:
        json.loads(body, object_pairs_hook=once_each)
    except ValueError:
        return
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None


async def snapshot_of(request: Request) -> Snapshot:
    snapshot: Snapshot = request.app.state.snapshot
    return snapshot


async def any_access(request: Request) -> Access:
    """The access of a good key, whatever its scopes."""
    return await find_access(request.app.state.snapshot, request.headers.raw)


async def admin_access(access: Annotated[Access, Depends(any_access)]) -> Access:
    """The access of a key with the scope admin."""
    require_scope(access, "admin")
    return access


async def database_connection(request: Request) -> AsyncIterator[asyncpg.Connection]:
    """A connection for the time of the request."""
    database: Database = request.app.state.database
    async with database.connection() as connection:
        yield connection


Connection = Annotated[asyncpg.Connection, Depends(database_connection)]
CurrentSnapshot = Annotated[Snapshot, Depends(snapshot_of)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Rows on a page.")]
After = Annotated[str | None, Query(description="The last id of the page before.")]
