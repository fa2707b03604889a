"""tollgate models: which models there are, and which engines serve them."""

import asyncio
import sys
import time
from typing import Annotated

import asyncpg
import typer

from engine import catalogue
from engine.errors import EngineError, EngineHasNoSuchModel
from engine.probe import probe
from engine.registry import split_engine_url
from engine.repository import models
from ledger.prices import Price, PriceBook, list_prices
from tollgate.database import with_database
from tollgate.tables import print_table

PROBE_SECONDS = 2.0  # for each question to an engine that is added

app = typer.Typer(help="Models, and the engines that serve them.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What callers ask for.")],
    engine_url: Annotated[list[str], typer.Option(help="An engine's address; repeat it for replicas.")],
    engine_model: Annotated[
        str | None, typer.Option(help="The engines' name of the model, if another.")
    ] = None,
    kind: Annotated[str, typer.Option(help="light, vllm or openai (any that speaks its API).")] = "openai",
    slots: Annotated[int, typer.Option(help="Calls at a time on each replica.")] = catalogue.DEFAULT_SLOTS,
    default_max_output: Annotated[
        int, typer.Option(help="Tokens of output a call may have at most.")
    ] = catalogue.DEFAULT_MAX_OUTPUT,
    context_length: Annotated[int | None, typer.Option(help="Tokens of prompt and output together.")] = None,
    endpoints: Annotated[
        str | None, typer.Option(help="What the engines answer, with commas: chat/completions,embeddings,…")
    ] = None,
    version: Annotated[str, typer.Option(help="Name of its first version.")] = catalogue.DEFAULT_VERSION,
) -> None:
    """Add a model; with a price, callers find it within a second. Warns of engines that do not answer."""
    pool = catalogue.Pool(
        model=name,
        engine_urls=engine_url,
        kind=kind,
        engine_model=engine_model,
        version=version,
        slots=slots,
        default_max_output=default_max_output,
        context_length=context_length,
        endpoints=None if endpoints is None else [part.strip() for part in endpoints.split(",")],
    )

    async def work(connection: asyncpg.Connection) -> tuple[str, Price | None]:
        added = await catalogue.add_model(connection, pool)
        book = PriceBook(await list_prices(connection, name))
        return added.id, book.at(name, time.time_ns() // 1000)

    id, price = with_database(work)
    print(id)
    for warning in asyncio.run(_warnings(pool)):
        print(f"Warning: {warning}", file=sys.stderr)
    if price is None:
        print(
            f"Warning: {name} has no price, so it is not served: set one with `tollgate prices set {name} "
            "--prompt … --completion …`.",
            file=sys.stderr,
        )


async def _warnings(pool: catalogue.Pool) -> list[str]:
    """A sentence for each engine that does not answer, or not for this model. It may start later."""

    async def ask(url: str) -> str | None:
        wanted = pool.engine_model or pool.model
        try:
            await probe(url, wanted, within=PROBE_SECONDS)
        except EngineHasNoSuchModel as error:
            host, port, _ = split_engine_url(url)
            served = ", ".join(f"'{one}'" for one in error.served) or "no model"
            return (
                f"The engine at {host}:{port} does not serve '{wanted}' but {served}: remove the model and "
                "add it with --engine-model."
            )
        except EngineError as error:
            return str(error)
        return None

    answers = await asyncio.gather(*(ask(url) for url in pool.engine_urls))
    return [answer for answer in answers if answer is not None]


@app.command("list")
def list_() -> None:
    """List models with their versions and replicas."""
    rows = []
    for model in with_database(models):
        endpoints = ",".join(model.endpoints)
        for version in model.versions:
            for replica in version.replicas:
                engine = [replica.name, replica.url, replica.kind, str(replica.slots), replica.state]
                rows.append([model.name, version.name, str(version.weight), *engine, endpoints])
            if not version.replicas:
                rows.append([model.name, version.name, str(version.weight), *["-"] * 5, endpoints])
        if not model.versions:
            rows.append([model.name, *["-"] * 7, endpoints])
    print_table(
        ["model", "version", "weight", "replica", "engine", "kind", "slots", "state", "endpoints"], rows
    )


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="MODEL", help="Its name or id.")]) -> None:
    """Remove a model; calls that run go on, and the books keep what it served."""
    with_database(lambda connection: catalogue.remove_model(connection, name))
    print(f"{name} is removed.")
