"""tollgate engines: what engines need before they start, and what an engine that runs already can do."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from engine.errors import EngineError
from engine.file_lock import Progress
from engine.models.checkpoints import CACHE, CHECKPOINTS, checkpoint
from engine.probe import probe
from engine.vllm.environment import Environment, build, environment
from tollgate.errors import TollgateError

LINE_SECONDS = 5.0  # between two progress lines where there is no terminal to draw on

app = typer.Typer(help="Engines: what they need, and what they can do.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Make the environment there instead of under .venvs.")]


@app.command("vllm-environment")
def vllm_environment(folder: Folder = None) -> None:
    """Make the Python environment of real vLLM (2.5 GB on a CPU) unless it is there; prints its folder."""
    with _sentences(), _telling("vLLM's environment") as progress:
        made = build(environment(folder=folder), progress=progress)
    print(made.folder)


@app.command()
def checkpoints(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CHECKPOINTS)}; all.")] = None,
    folder: Folder = None,
    cache: Annotated[Path, typer.Option(help="Where checkpoints are kept.")] = CACHE,
) -> None:
    """Make the checkpoints that vLLM serves here, unless they are there; prints their folders."""
    unknown = set(names or ()) - set(CHECKPOINTS)
    if unknown:
        raise TollgateError(
            f"There is no checkpoint '{unknown.pop()}' to make: name one of {', '.join(CHECKPOINTS)}."
        )
    with _sentences(), _telling("checkpoints") as progress:
        where: Environment = build(environment(folder=folder), progress=progress)
        made = [
            checkpoint(name, where=where, progress=progress, cache=cache)
            for name in CHECKPOINTS
            if not names or name in names
        ]
    for path in made:
        print(path)


@app.command("probe")
def probe_(
    url: Annotated[str, typer.Argument(help="Its address, with or without /v1.")],
    model: Annotated[str | None, typer.Option(help="The model that it must serve.")] = None,
) -> None:
    """Ask a running engine what it is and can do; it generates nothing for that."""
    with _sentences():
        facts = asyncio.run(probe(url, model))
    print(f"kind            {facts.kind}{f' {facts.version}' if facts.version else ''}")
    print(f"address         {facts.url}")
    print(f"model           {facts.engine_model} (of {', '.join(facts.served)})")
    print(f"endpoints       {', '.join(sorted(facts.endpoints)) or 'none of those that Tollgate passes on'}")
    print(f"context         {facts.context_length or 'it does not say'}")
    print(f"slots           {facts.slots or 'it does not say'}")
    print(f"counts tokens   {'yes' if facts.has_tokenize else 'no: calls that end early are estimated'}")


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise TollgateError(str(error)) from error


@contextmanager
def _telling(what: str) -> Iterator[Progress]:
    """A progress line on stderr: redrawn in a terminal, else a line every few seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda words: bar.update(task, description=f"{what}: {words}")
        return
    told = -LINE_SECONDS

    def line(words: str) -> None:
        nonlocal told
        if time.monotonic() - told >= LINE_SECONDS:
            told = time.monotonic()
            console.print(f"{what}: {words}", highlight=False, soft_wrap=True)

    yield line
