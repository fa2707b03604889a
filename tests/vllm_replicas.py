"""Two replicas of real vLLM on a CPU with the tiny checkpoint, once for the whole session.

The first use on a machine makes vLLM's environment (2 minutes) and the checkpoint (15 s); `tollgate engines
checkpoints tiny-llama` does both beforehand. The replicas start together, in 30 to 60 s on two cores.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engine.models.checkpoints import checkpoint
from engine.vllm.environment import build, environment
from engine.vllm.launch import command
from tests.real_engine import RealEngine, free_ports, started, wait_for_token

MODEL = "tiny-llama"
SLOTS = 16
CONTEXT = 2048
START_SECONDS = 240.0  # both, on two cores that others use as well
STOP_SECONDS = 20.0


@contextmanager
def running_vllm_replicas(folder: Path, *, count: int = 2, slots: int = SLOTS) -> Iterator[list[RealEngine]]:
    """`count` replicas that have each given a token; their logs are in `folder`."""
    where = build(environment(kind="cpu"), progress=print)
    model = checkpoint("tiny-llama", where=where, progress=print)
    with ExitStack() as stack:
        replicas = []
        for number, port in enumerate(free_ports(count), start=1):
            log = folder / f"vllm-{number}.log"
            words, variables = command(model, MODEL, port, slots, context=CONTEXT, where=where)
            process = stack.enter_context(started(f"vllm-{number}", words, variables, log, STOP_SECONDS))
            url = f"http://127.0.0.1:{port}"
            replicas.append(RealEngine(url, "vllm", MODEL, slots, CONTEXT, log, process))
        wait_for_token(replicas, START_SECONDS)
        yield replicas


@pytest.fixture(scope="session")
def vllm_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    """Two real vLLM replicas of tiny-llama; mark the tests that use them `vllm`."""
    with running_vllm_replicas(tmp_path_factory.mktemp("vllm")) as replicas:
        yield replicas
