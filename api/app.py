"""The FastAPI application: every route but the lane's, with one set of rules for errors."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import asyncpg
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.database import Database
from api.edge import Edge, error_response, refusal_of
from api.errors import Conflict, GatewayError, InternalError, InvalidRequest, NotFound, quoted
from api.openapi import describe, lane_routes
from api.routes import admin_access, admin_models, admin_prices, models
from api.routes import health as health_routes
from api.snapshot import Snapshot
from engine.errors import DuplicateName, InvalidSetting, NotRegistered
from ledger.errors import BadAmount, BadCurrency, PriceExists


def create_app(*, snapshot: Snapshot, database_url: str, health: Callable[[], Mapping[str, Any]]) -> FastAPI:
    """The application over a snapshot that its owner starts and stops.

    database_url: for the admin routes, which hold at most POOL_MAX connections. health: what /readyz
    reports beside the snapshot, name to whether it is fine; any that is not makes the process not ready.
    """
    database = Database(database_url)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await database.close()

    # Its /docs is FastAPI's own, with the assets out of the package in place of a CDN's.
    app = FastAPIOffline(
        title="Tollgate",
        summary="An AI inference gateway: one key, one budget, one ledger.",
        version="0.1.0",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        static_url="/docs/assets",
    )
    app.state.snapshot = snapshot
    app.state.database = database
    app.state.health = health
    app.add_middleware(Edge)
    _register_errors(app)
    lane_routes(app)
    for module in (models, admin_access, admin_models, admin_prices):
        app.include_router(module.router)
    app.include_router(health_routes.router)
    describe(app)
    return app


def _register_errors(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        response = error_response(request, in_our_words(request, error))
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)  # Allow, on a 405
        return response

    for kind in (
        GatewayError,
        HTTPException,
        RequestValidationError,
        InvalidSetting,
        DuplicateName,
        NotRegistered,
        BadAmount,
        BadCurrency,
        PriceExists,
        asyncpg.DataError,
    ):
        app.add_exception_handler(kind, answer)


def in_our_words(request: Request, error: Exception) -> GatewayError:
    """The refusal that stands for an error of the framework, the engine package or the ledger."""
    match error:
        case GatewayError():
            return error
        case RequestValidationError():
            return invalid_field(error)
        case HTTPException():
            return refusal_of(request, error)
        case InvalidSetting():
            return InvalidRequest(str(error), error.field)
        case DuplicateName():
            return Conflict(str(error), error.field)
        case NotRegistered():
            return NotFound(str(error), error.field)
        case BadAmount() | BadCurrency():
            return InvalidRequest(str(error), code=error.code)
        case asyncpg.DataError():
            # NUL, for one, which Postgres text cannot hold.
            return InvalidRequest(
                "A value cannot be stored: it holds characters or sizes beyond what is possible."
            )
        case PriceExists():
            return Conflict(str(error), code=error.code)
    return InternalError()


def invalid_field(error: RequestValidationError) -> InvalidRequest:
    """The first thing wrong with a body or a parameter, by its name; what was sent is not repeated."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(
            "The body is not valid JSON: UTF-8, no NaN, no lone surrogates.", code="invalid_json"
        )
    path = [str(part) for part in first["loc"][1:]]
    if not path:
        return InvalidRequest(
            "The body must be a JSON object, sent as application/json.", code="invalid_json"
        )
    param = quoted(".".join(path))
    return InvalidRequest(f"{param}: {first['msg'].removeprefix('Value error, ')}.", param)
