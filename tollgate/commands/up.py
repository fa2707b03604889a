"""`tollgate up`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from tollgate.errors import TollgateError
from tollgate.home import SERVER_VARIABLES, home_folder
from tollgate.supervisor import options as defaults
from tollgate.supervisor.options import EngineChoice, Options, Price

app = typer.Typer(
    invoke_without_command=True,
    subcommand_metavar="",
    help="Run Tollgate and all it needs here, until Ctrl-C.",
)

LARGEST_PORT = 65_535
PRICE = re.compile(r"\d{1,12}(\.\d{1,6})?")  # for a million tokens; a price for one has 12 decimals


def _port(default: int, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        min=1, max=LARGEST_PORT, help=f"Port of {what}.", rich_help_panel="Ports"
    )
    return option


@app.callback()
def up(
    host: Annotated[str, typer.Option(help="Address that the API listens on.")] = "127.0.0.1",
    port: Annotated[int, _port(defaults.API_PORT, "the API")] = defaults.API_PORT,
    workers: Annotated[int, typer.Option(min=1, max=256, help="API processes.")] = 1,
    grace: Annotated[
        float, typer.Option(min=0, max=600, help="Seconds that open streams have to end at a stop.")
    ] = 10.0,
    first_byte_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that an engine may take to begin an answer.")
    ] = 600.0,
    idle_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that an engine may be silent within a stream.")
    ] = 60.0,
    caller_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a caller may take nothing before it is cut.")
    ] = 60.0,
    strict_journal: Annotated[
        bool, typer.Option("--strict-journal", help="Wait for the disk at each record of a call.")
    ] = False,
    engine: Annotated[EngineChoice | None, typer.Option(help="Engine to run.", show_default="light")] = None,
    replicas: Annotated[int, typer.Option(min=1, max=64, help="Engines to run of that kind.")] = 1,
    slots: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Calls that one engine answers at the same time.")
    ] = None,
    engine_url: Annotated[
        list[str] | None,
        typer.Option(help="Engine that runs already, with or without /v1; again for each replica."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model at the engines.")] = None,
    model_file: Annotated[
        Path | None,
        typer.Option(help="GGUF file (light) or checkpoint folder (vllm), in place of the small model."),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="PROMPT,COMPLETION", help="In USD for a million tokens, such as 0.10,0.40."),
    ] = None,
    free: Annotated[bool, typer.Option("--free", help="The model costs nothing.")] = False,
    postgres_port: Annotated[int, _port(defaults.POSTGRES_PORT, "PostgreSQL")] = defaults.POSTGRES_PORT,
    broker_port: Annotated[int, _port(defaults.BROKER_PORT, "the broker")] = defaults.BROKER_PORT,
    limits_port: Annotated[int, _port(defaults.LIMITS_PORT, "the limits server")] = defaults.LIMITS_PORT,
    cache_port: Annotated[int, _port(defaults.CACHE_PORT, "the cache")] = defaults.CACHE_PORT,
    engine_port: Annotated[
        int, _port(defaults.ENGINE_PORT, "the first engine; more take the next ones")
    ] = defaults.ENGINE_PORT,
) -> None:
    """Run Tollgate and all it needs here, until Ctrl-C.

    Servers named by DATABASE_URL, BROKER_URL, LIMITS_URL or CACHE_URL are used instead of started.
    """
    if engine is not None and engine_url:
        raise TollgateError(
            "--engine starts engines and --engine-url names engines that run already; give one of them."
        )
    options = Options(
        host=host,
        port=port,
        workers=workers,
        grace=grace,
        api_words=(
            *("--first-byte-timeout", f"{first_byte_timeout:g}", "--idle-timeout", f"{idle_timeout:g}"),
            *("--caller-timeout", f"{caller_timeout:g}"),
            *(("--strict-journal",) if strict_journal else ()),
        ),
        engine=engine or "light",
        replicas=replicas,
        slots=slots,
        engine_urls=tuple(engine_url or ()),
        model=model,
        model_file=model_file.absolute() if model_file else None,
        price=_price(price, free),
        postgres_port=postgres_port,
        broker_port=broker_port,
        limits_port=limits_port,
        cache_port=cache_port,
        engine_port=engine_port,
        given={name: os.environ[name] for name in SERVER_VARIABLES if os.environ.get(name)},
    )
    from tollgate.supervisor.display import display_for_stdout
    from tollgate.supervisor.run import up as run

    raise typer.Exit(run(options, home_folder(), display_for_stdout()))


def _price(text: str | None, free: bool) -> Price | None:
    if free:
        if text is not None:
            raise TollgateError("--price and --free contradict each other; give one of them.")
        return Price(prompt=Decimal(0), completion=Decimal(0))
    if text is None:
        return None
    amounts = text.split(",")
    if len(amounts) != 2 or not all(PRICE.fullmatch(amount.strip()) for amount in amounts):
        raise TollgateError(
            f"--price '{text}' is no price; write PROMPT,COMPLETION in USD for a million tokens, with at "
            "most 6 decimals, such as 0.10,0.40."
        )
    prompt, completion = (Decimal(amount.strip()) for amount in amounts)
    return Price(prompt=prompt, completion=completion)
