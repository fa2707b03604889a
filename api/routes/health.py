"""Is the process alive, and may a load balancer send it calls."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from api.routes.dependencies import CurrentSnapshot

router = APIRouter(tags=["Health"])


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """degraded: known keys are served, Postgres is away. not_ready: send calls elsewhere (status 503)."""

    status: Literal["ready", "degraded", "not_ready"]
    checks: dict[str, bool]


async def checks_of(request: Request) -> Mapping[str, Any]:
    health: Callable[[], Mapping[str, Any]] = request.app.state.health
    return health()


@router.get("/healthz", summary="The process runs")
async def healthz() -> Alive:
    return Alive()


@router.get("/readyz", summary="The process can serve calls", responses={503: {"model": Readiness}})
async def readyz(
    response: Response, snapshot: CurrentSnapshot, others: Annotated[Mapping[str, Any], Depends(checks_of)]
) -> Readiness:
    needed = {name: bool(fine) for name, fine in others.items()}
    needed["snapshot"] = snapshot.loaded_at is not None and not snapshot.stale()
    checks = needed | {"postgres": snapshot.connected}
    if not all(needed.values()):
        response.status_code = 503
        response.headers["retry-after"] = "1"
        return Readiness(status="not_ready", checks=checks)
    return Readiness(status="ready" if snapshot.connected else "degraded", checks=checks)
