"""The models as callers see them, in OpenAI's shape."""

from typing import Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from api.errors import ModelNotFound
from api.routes.dependencies import CurrentSnapshot, any_access
from engine.registry import Model

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


@router.get("", summary="List the models")
async def list_models(snapshot: CurrentSnapshot) -> ModelsOut:
    return ModelsOut(data=[model_out(model) for model in snapshot.registry.models.values()])


@router.get("/{model:path}", summary="One model")
async def get_model(model: str, snapshot: CurrentSnapshot) -> ModelOut:
    found = snapshot.registry.models.get(model)
    if found is None:
        raise ModelNotFound(model)
    return model_out(found)


def model_out(model: Model) -> ModelOut:
    return ModelOut(id=model.name, created=model.created)
