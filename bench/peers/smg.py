"""smg, a gateway in Rust: round robin, no keys, limits or ledger."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.environments import environment, pinned
from bench.peers import Stage, Target
from bench.processes import free_port, wait_for_answer
from bench.processes import running as running_process

TITLE = f"smg {pinned('smg', 'smg')}"


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    program, port, log = environment("smg") / "smg", free_port(), stage.folder / "smg.log"
    words: list[str | Path] = [
        *(str(program), "launch", "--port", str(port), "--worker-urls", *stage.engines),
        *("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())),
        *("--backend", "vllm", "--disable-tokenizer-autoload"),
    ]
    with running_process(words, log, core=stage.cores.gateway) as process:
        wait_for_answer(process, port, "/v1/models", log)
        yield Target(f"http://127.0.0.1:{port}", process.pid)
