"""FastAPI and aiohttp put together in the plain way (bench/plain_relay.py): what Python costs by itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.environments import ROOT, environment, pinned
from bench.peers import Stage, Target
from bench.processes import free_port, wait_for_answer
from bench.processes import running as running_process

NAME = "fastapi-aiohttp"
TITLE = f"bare FastAPI {pinned(NAME, 'fastapi')} + aiohttp {pinned(NAME, 'aiohttp')}"


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    port, log = free_port(), stage.folder / "relay.log"
    words: list[str | Path] = [
        *(environment(NAME) / "python", ROOT / "bench" / "plain_relay.py"),
        *("--port", str(port), *stage.engines),
    ]
    with running_process(words, log, core=stage.cores.gateway) as process:
        wait_for_answer(process, port, "/health", log)
        yield Target(f"http://127.0.0.1:{port}", process.pid)
