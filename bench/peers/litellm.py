"""LiteLLM's proxy with one worker: a master key, no database, no limits, no ledger, logging off."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from bench.environments import environment, pinned
from bench.peers import Stage, Target
from bench.processes import free_port, wait_for_answer
from bench.processes import running as running_process

TITLE = f"LiteLLM proxy {pinned('litellm', 'litellm')}"
KEY = "sk-bench"


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    port, log, settings = free_port(), stage.folder / "litellm.log", stage.folder / "litellm.yaml"
    replicas = [
        {"model_name": "mock", "litellm_params": {"model": "hosted_vllm/mock", "api_base": f"{url}/v1"}}
        for url in stage.engines
    ]
    # JSON is YAML.
    settings.write_text(json.dumps({"model_list": replicas, "general_settings": {"master_key": KEY}}))
    words: list[str | Path] = [
        *("env", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_MODE=PRODUCTION"),
        *(str(environment("litellm") / "litellm"), "--config", settings, "--host", "127.0.0.1"),
        *("--port", str(port), "--num_workers", "1", "--telemetry", "False"),
    ]
    with running_process(words, log, core=stage.cores.gateway) as process:
        wait_for_answer(process, port, "/health/liveliness", log)
        yield Target(f"http://127.0.0.1:{port}", process.pid, KEY)
