"""`tollgate prices`: what a token costs, from when on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import asyncpg
import orjson
import typer

from engine import catalogue
from ledger import prices
from ledger.money import format_amount
from ledger.prices import Price
from tollgate.database import with_database
from tollgate.errors import TollgateError
from tollgate.tables import show, table

app = typer.Typer(
    no_args_is_help=True, help="The price book: prices per token, with the date they hold from."
)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]


@app.command("set")
def set_price(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    prompt: Annotated[str, typer.Option(help="Per prompt token, such as 0.0000015.")],
    completion: Annotated[str, typer.Option(help="Per completion token.")],
    cached: Annotated[
        str | None, typer.Option(help="Per prompt token found in the engine's cache; else as --prompt.")
    ] = None,
    currency: Annotated[str, typer.Option(help="ISO 4217 code.")] = "USD",
    effective: Annotated[
        str | None,
        typer.Option("--from", help="ISO time with its zone, such as 2027-01-01T00:00Z; else now."),
    ] = None,
    before_model: Annotated[
        bool, typer.Option("--before-model", help="The model comes later: it need not be there yet.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Set a price. Calls admitted before keep the price they had; no price is ever changed."""

    async def work(connection: asyncpg.Connection) -> Price:
        if not before_model:
            await catalogue.require_model(connection, model, "--before-model")
        return await prices.set_price(
            connection,
            model=model,
            prompt=prompt,
            completion=completion,
            cached_prompt=cached,
            currency=currency,
            effective_from=None if effective is None else parse_time(effective),
        )

    price = with_database(work)
    if as_json:
        typer.echo(orjson.dumps(_document(price)).decode())
    else:
        _print([price])


@app.command("list")
def list_prices(
    model: Annotated[str | None, typer.Argument(help="Only this model's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the price book: each model's prices, the newest last."""

    async def work(connection: asyncpg.Connection) -> list[Price]:
        return await prices.list_prices(connection, model)

    found = with_database(work)
    if as_json:
        typer.echo(orjson.dumps([_document(price) for price in found]).decode())
    else:
        _print(found)


def parse_time(text: str) -> datetime:
    """An ISO 8601 time that says its zone. Raises TollgateError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min
    if time.tzinfo is None:
        raise TollgateError(f"{text!r} is not a time with a zone: write it like 2027-01-01T00:00:00Z.")
    return time.astimezone(UTC)


def _when(price: Price) -> str:
    return datetime.fromtimestamp(price.effective_us / 1e6, UTC).isoformat(timespec="seconds")


def _document(price: Price) -> dict[str, Any]:
    return {
        "id": price.id,
        "model": price.model,
        "currency": price.currency,
        "prompt": format_amount(price.prompt),
        "cached_prompt": format_amount(price.cached_prompt),
        "completion": format_amount(price.completion),
        "effective_from": _when(price),
    }


def _print(found: list[Price]) -> None:
    lines = table("Model", ">Prompt", ">Cached prompt", ">Completion", "Per token in", "From (UTC)")
    for price in found:
        amounts = map(format_amount, (price.prompt, price.cached_prompt, price.completion))
        lines.add_row(price.model, *amounts, price.currency, _when(price))
    show(lines, "There is no price yet: set one with `tollgate prices set`.")
