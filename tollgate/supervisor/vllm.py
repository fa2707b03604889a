"""Real vLLM as the engine of a start: its environment and checkpoint are made on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.catalogue import Pool
from engine.errors import EngineError
from engine.models.checkpoints import checkpoint
from engine.vllm.environment import Environment, build, environment
from engine.vllm.launch import CONTEXT, START_SECONDS, command
from tollgate.errors import ServerFailed, TollgateError
from tollgate.supervisor.checks import http_json
from tollgate.supervisor.engines import Engines, output_limit
from tollgate.supervisor.options import Options
from tollgate.supervisor.part import Part, Tier
from tollgate.supervisor.ports import LOOPBACK
from tollgate.supervisor.process import Command

MODEL = "smollm2"
SLOTS = {"cpu": 16, "gpu": 128}
GPU_START_SECONDS = 1800.0  # large weights, compilation
STOP_SECONDS = 20.0


def vllm_engines(options: Options, progress: Callable[[str], None]) -> Engines:
    """vLLM processes for the options; makes what they need, telling progress. Raises ServerFailed."""
    try:
        where = build(environment(), progress=progress)
        folder = options.model_file or checkpoint("smollm2", where=where, progress=progress)
    except EngineError as error:
        raise ServerFailed(str(error)) from error
    if not (folder / "config.json").is_file():
        raise TollgateError(
            f"--model-file {folder} holds no checkpoint: name a folder with a config.json for --engine vllm."
        )
    name = options.model or MODEL
    slots = options.slots or SLOTS[where.device]
    ports = range(options.engine_port, options.engine_port + options.replicas)
    pool = Pool(
        model=name,
        engine_urls=[f"http://{LOOPBACK}:{port}" for port in ports],
        kind="vllm",
        slots=slots,
        context_length=CONTEXT,
        default_max_output=output_limit(CONTEXT),
    )
    parts = tuple(
        _part(f"engine-{number}", port, slots, name, folder, where) for number, port in enumerate(ports, 1)
    )
    return Engines(parts=parts, pool=pool, describe=f"vLLM on the {where.device.upper()}")


def _part(part_name: str, port: int, slots: int, model: str, folder: Path, where: Environment) -> Part:
    words, variables = command(folder, model, port, slots, host=LOOPBACK, where=where)
    start = Command(name=part_name, argv=tuple(words), env=variables)
    return Part(
        name=part_name,
        tier=Tier.ENGINE,
        prepare=lambda: start,
        is_ready=lambda: http_json("GET", f"http://{LOOPBACK}:{port}/health", seconds=1)[0] == 200,
        start_seconds=START_SECONDS if where.device == "cpu" else GPU_START_SECONDS,
        stop_seconds=STOP_SECONDS,
    )
