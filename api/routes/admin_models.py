"""Models, versions and replicas under /admin/v1, for keys with the scope admin."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from api.access.schemas import Body, Out
from api.routes.dependencies import Connection, StrictRoute, admin_access
from engine import catalogue
from engine.repository import models

router = APIRouter(
    prefix="/admin/v1", tags=["Models"], dependencies=[Depends(admin_access)], route_class=StrictRoute
)

Kind = Literal["light", "vllm", "openai"]
State = Literal["ready", "draining", "off"]


class ModelIn(Body):
    """A model with one version and its first replicas."""

    name: str
    engine_urls: list[str] = Field(min_length=1, max_length=100)
    kind: Kind = "openai"
    engine_model: str | None = Field(None, description="The engines' name of it; the same when left out.")
    version: str = catalogue.DEFAULT_VERSION
    weight: int = 100
    slots: int = Field(catalogue.DEFAULT_SLOTS, description="Calls at a time on each replica.")
    default_max_output: int = Field(catalogue.DEFAULT_MAX_OUTPUT, description="Tokens.")
    context_length: int | None = Field(None, description="Tokens.")
    endpoints: list[str] | None = None


class VersionIn(Body):
    model: str = Field(description="Id or name.")
    name: str
    weight: int = 100


class VersionChange(Body):
    weight: int


class ReplicaIn(Body):
    version: str = Field(description="The version's id.")
    url: str
    kind: Kind = "openai"
    engine_model: str | None = None
    slots: int = catalogue.DEFAULT_SLOTS
    name: str | None = None


class ReplicaChange(Body):
    state: State | None = None
    slots: int | None = None


class ReplicaOut(Out):
    object: Literal["replica"] = "replica"
    id: str
    version_id: str
    name: str
    url: str
    kind: Kind
    engine_model: str
    slots: int
    state: State
    created_at: datetime


class VersionOut(Out):
    object: Literal["version"] = "version"
    id: str
    model_id: str
    name: str
    weight: int
    created_at: datetime
    replicas: list[ReplicaOut]


class ModelDetails(Out):
    object: Literal["model"] = "model"
    id: str
    name: str
    default_max_output: int
    context_length: int | None
    endpoints: list[str]
    created_at: datetime
    versions: list[VersionOut]


class ModelList(Out):
    object: Literal["list"] = "list"
    data: list[ModelDetails]


@router.post("/models", status_code=201, summary="Add a model with its first version and replicas")
async def add_model(body: ModelIn, connection: Connection) -> ModelDetails:
    pool = catalogue.Pool(
        model=body.name,
        engine_urls=body.engine_urls,
        kind=body.kind,
        engine_model=body.engine_model,
        version=body.version,
        weight=body.weight,
        slots=body.slots,
        default_max_output=body.default_max_output,
        context_length=body.context_length,
        endpoints=body.endpoints,
    )
    return ModelDetails.model_validate(await catalogue.add_model(connection, pool))


@router.get("/models", summary="All models with their versions and replicas")
async def list_models(connection: Connection) -> ModelList:
    return ModelList.model_validate({"data": await models(connection)})


@router.get("/models/{model:path}", summary="One model, by id or name")
async def get_model(model: str, connection: Connection) -> ModelDetails:
    return ModelDetails.model_validate(await catalogue.find_model(connection, model))


@router.delete("/models/{model:path}", status_code=204, summary="Remove a model, by id or name")
async def remove_model(model: str, connection: Connection) -> Response:
    await catalogue.remove_model(connection, model)
    return Response(status_code=204)


@router.post("/versions", status_code=201, summary="Add a version to a model")
async def add_version(body: VersionIn, connection: Connection) -> VersionOut:
    return VersionOut.model_validate(
        await catalogue.add_version(connection, body.model, body.name, body.weight)
    )


@router.patch("/versions/{version}", summary="Change a version's weight")
async def change_version(version: str, body: VersionChange, connection: Connection) -> VersionOut:
    return VersionOut.model_validate(await catalogue.change_version(connection, version, body.weight))


@router.delete("/versions/{version}", status_code=204, summary="Remove a version and its replicas")
async def remove_version(version: str, connection: Connection) -> Response:
    await catalogue.remove_version(connection, version)
    return Response(status_code=204)


@router.post("/replicas", status_code=201, summary="Add a replica to a version")
async def add_replica(body: ReplicaIn, connection: Connection) -> ReplicaOut:
    replica = await catalogue.add_replica(
        connection,
        body.version,
        url=body.url,
        kind=body.kind,
        engine_model=body.engine_model,
        slots=body.slots,
        name=body.name,
    )
    return ReplicaOut.model_validate(replica)


@router.patch("/replicas/{replica}", summary="Change a replica's state or slots")
async def change_replica(replica: str, body: ReplicaChange, connection: Connection) -> ReplicaOut:
    return ReplicaOut.model_validate(
        await catalogue.change_replica(connection, replica, state=body.state, slots=body.slots)
    )


@router.delete("/replicas/{replica}", status_code=204, summary="Remove a replica")
async def remove_replica(replica: str, connection: Connection) -> Response:
    await catalogue.remove_replica(connection, replica)
    return Response(status_code=204)
