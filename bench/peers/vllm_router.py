"""vllm-router, a router in Rust: no keys, limits, ledger or cache.

Round robin is its cheapest policy (its default, cache_aware, costs more than twice as much); logging is off.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.environments import environment, pinned
from bench.peers import Stage, Target
from bench.processes import free_port, wait_for_answer
from bench.processes import running as running_process

TITLE = f"vllm-router {pinned('vllm-router', 'vllm-router')}"


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    program, port, log = (
        environment("vllm-router") / "vllm-router",
        free_port(),
        stage.folder / "vllm-router.log",
    )
    words: list[str | Path] = [
        *(str(program), "--port", str(port), "--worker-urls", *stage.engines),
        *("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())),
    ]
    with running_process(words, log, core=stage.cores.gateway) as process:
        wait_for_answer(process, port, "/v1/models", log)
        yield Target(f"http://127.0.0.1:{port}", process.pid)
