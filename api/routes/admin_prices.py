"""The price book under /admin/v1, for keys with the scope admin. Prices are decimal text per token."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from api.access.schemas import Body, Moment
from api.routes.dependencies import Connection, StrictRoute, admin_access
from engine import catalogue
from ledger.money import format_amount
from ledger.prices import Price, list_prices, set_price

router = APIRouter(
    prefix="/admin/v1/prices", tags=["Prices"], dependencies=[Depends(admin_access)], route_class=StrictRoute
)


PerToken = Annotated[str, Field(max_length=64, description="Decimal text, such as 0.0000015.")]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PriceIn(Body):
    """A price per token, in force from a time on; calls admitted before keep the one they had."""

    model: str = Field(min_length=1, max_length=128)
    prompt: PerToken
    cached_prompt: PerToken | None = Field(None, description="The same as prompt when left out.")
    completion: PerToken
    currency: str = Field("USD", max_length=3)
    effective_from: Moment | None = Field(None, description="Now when left out.")
    before_model: bool = Field(False, description="The model comes later: it need not be there yet.")


class PriceOut(BaseModel):
    object: Literal["price"] = "price"
    id: str
    model: str
    currency: str
    prompt: str
    cached_prompt: str
    completion: str
    effective_from: datetime


class PricesOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[PriceOut]


@router.get("", summary="All prices, by model and date")
async def get_prices(connection: Connection, model: str | None = None) -> PricesOut:
    return PricesOut(data=[price_out(price) for price in await list_prices(connection, model)])


@router.post("", status_code=201, summary="Set a price from a time on")
async def add_price(body: PriceIn, connection: Connection) -> PriceOut:
    if not body.before_model:
        await catalogue.require_model(connection, body.model, "before_model")
    price = await set_price(
        connection,
        model=body.model,
        prompt=body.prompt,
        cached_prompt=body.cached_prompt,
        completion=body.completion,
        currency=body.currency,
        effective_from=body.effective_from,
    )
    return price_out(price)


def price_out(price: Price) -> PriceOut:
    return PriceOut(
        id=price.id,
        model=price.model,
        currency=price.currency,
        prompt=format_amount(price.prompt),
        cached_prompt=format_amount(price.cached_prompt),
        completion=format_amount(price.completion),
        effective_from=EPOCH + timedelta(microseconds=price.effective_us),
    )
