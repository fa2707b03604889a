"""The models as callers see them, in OpenAI's shape."""

import time
from typing import Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from api.errors import ModelNotFound
from api.routes.dependencies import CurrentSnapshot, any_access
from engine.registry import Model
from ledger.prices import PriceBook

router = APIRouter(prefix="/v1/models", tags=["Models"], dependencies=[Depends(any_access)])


class ModelOut(BaseModel):
    """created: seconds since the epoch."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tollgate"] = "tollgate"


class ModelsOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]


@router.get("", summary="List the models that can be called")
async def list_models(snapshot: CurrentSnapshot) -> ModelsOut:
    models = snapshot.registry.models.values()
    return ModelsOut(data=[model_out(model) for model in models if is_offered(model, snapshot.prices)])


@router.get("/{model:path}", summary="One model")
async def get_model(model: str, snapshot: CurrentSnapshot) -> ModelOut:
    found = snapshot.registry.models.get(model)
    if found is None or not is_offered(found, snapshot.prices):
        raise ModelNotFound(model)
    return model_out(found)


def is_offered(model: Model, prices: PriceBook) -> bool:
    """Whether a caller can call it, at once or soon: it has a price, and a replica that is not switched off
    in a version that gets calls."""
    return prices.at(model.name, time.time_ns() // 1000) is not None and any(
        version.weight > 0 and any(replica.state != "off" for replica in version.replicas)
        for version in model.versions
    )


def model_out(model: Model) -> ModelOut:
    return ModelOut(id=model.name, created=model.created)
