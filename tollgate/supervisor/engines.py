"""The engines of one start: those that it runs itself, and those that run already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine import light
from engine.catalogue import Pool
from engine.errors import EngineCannotStart, EngineError
from engine.probe import probe
from tollgate.errors import ServerFailed, TollgateError, Unreachable
from tollgate.supervisor.checks import http_json
from tollgate.supervisor.options import Options
from tollgate.supervisor.part import Part, Tier
from tollgate.supervisor.ports import LOOPBACK, require_free
from tollgate.supervisor.process import Command
from tollgate.supervisor.threads import in_thread

GIVEN_SLOTS = 64  # of an engine that runs already, unless --slots says otherwise
# What one answer may be at most when the caller sets no limit: a quarter of the context, within these bounds.
SMALLEST_OUTPUT = 256
LARGEST_OUTPUT = 4096
UNKNOWN_OUTPUT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What to start (nothing for engines that run already) and what to register."""

    parts: tuple[Part, ...]
    pool: Pool
    describe: str


async def choose(options: Options, progress: Callable[[str], None]) -> Engines:
    """The engines that the options name; asks those that run already, makes what others need."""
    if options.engine_urls:
        return await _given(options)
    if options.engine == "vllm":
        from tollgate.supervisor.vllm import vllm_engines  # which needs this module

        return await in_thread(vllm_engines, options, progress)
    return _light(options)


def _light(options: Options) -> Engines:
    name = options.model or light.DEFAULT_NAME
    slots = options.slots or light.DEFAULT_SLOTS
    try:
        model_file = options.model_file or light.bundled_model_file()
    except EngineCannotStart as error:
        raise ServerFailed(str(error)) from error
    if not model_file.is_file():
        raise TollgateError(f"--model-file {model_file} is no file: name a GGUF file for the light engine.")
    ports = range(options.engine_port, options.engine_port + options.replicas)
    pool = Pool(
        model=name,
        engine_urls=[f"http://{LOOPBACK}:{port}" for port in ports],
        kind="light",
        slots=slots,
        context_length=light.DEFAULT_CONTEXT,
        default_max_output=output_limit(light.DEFAULT_CONTEXT),
    )
    parts = tuple(
        _light_part(f"engine-{number}", port, slots, name, model_file) for number, port in enumerate(ports, 1)
    )
    return Engines(parts=parts, pool=pool, describe=f"light engine, {model_file.stem}")


def output_limit(context_length: int | None) -> int:
    """Tokens of one answer when the caller sets no limit."""
    if context_length is None:
        return UNKNOWN_OUTPUT
    return max(SMALLEST_OUTPUT, min(LARGEST_OUTPUT, context_length // 4))


def _light_part(part_name: str, port: int, slots: int, model: str, model_file: Path) -> Part:
    words = ("--port", str(port), "--slots", str(slots), "--model-file", str(model_file), "--name", model)
    command = Command(name=part_name, argv=(sys.executable, "-m", "engine.light", *words))
    return Part(
        name=part_name,
        tier=Tier.ENGINE,
        prepare=lambda: command,
        is_ready=lambda: http_json("GET", f"http://{LOOPBACK}:{port}/health", seconds=1)[0] == 200,
        start_seconds=120,
        stop_seconds=10,
    )


def require_engine_ports(options: Options, engines: Engines) -> None:
    """Raise PortTaken when an engine that is to be started could not listen."""
    for number, part in enumerate(engines.parts):
        require_free(options.engine_port + number, what=part.name, option="--engine-port")


async def _given(options: Options) -> Engines:
    try:
        facts = [await probe(_with_scheme(url), options.model) for url in options.engine_urls]
    except EngineError as error:
        raise Unreachable(f"--engine-url: {error}") from error
    first = facts[0]
    for one in facts[1:]:
        if one.engine_model != first.engine_model:
            raise TollgateError(
                f"The engines serve different models, '{first.engine_model}' and '{one.engine_model}': "
                "say which one with --model."
            )
    if not first.endpoints:
        raise TollgateError(
            f"The engine at {first.host}:{first.port} has no endpoint that Tollgate passes on."
        )
    context_length = min((one.context_length for one in facts if one.context_length), default=None)
    pool = Pool(
        model=first.engine_model,
        engine_urls=[one.url for one in facts],
        kind=first.kind,
        slots=options.slots or min(one.slots or GIVEN_SLOTS for one in facts),
        context_length=context_length,
        default_max_output=output_limit(context_length),
        endpoints=sorted(frozenset.intersection(*(one.endpoints for one in facts))),
    )
    return Engines(parts=(), pool=pool, describe="engine that runs already")


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"
