"""An engine process of a test: its log in a file, awaited until it gives a real token, surely stopped."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.errors import EngineUnreachable
from engine.probe import real_token
from engine.registry import Kind
from tests.waiting import until
from tollgate.supervisor.process import Command, has_exited, log_tail, spawn, stop

STOP_SECONDS = 10.0
LIGHT_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RealEngine:
    """A running engine; as a replica it can be asked for counts."""

    url: str
    kind: Kind
    engine_model: str
    slots: int
    context: int  # tokens per call
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def started(
    name: str,
    words: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    stop_seconds: float = STOP_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that cannot outlive the tests, and stop it with all its children."""
    command = Command(name=name, argv=tuple(words), env=variables, death_signal=signal.SIGKILL)
    process = spawn(command, log)
    try:
        yield process
    finally:
        stop(process, signal.SIGTERM, stop_seconds)


def wait_for_token(engines: Sequence[RealEngine], within: float) -> None:
    """Wait until each engine has given a real token; fails with the end of its log when one does not."""
    deadline = time.monotonic() + within
    for engine in engines:

        def answers(engine: RealEngine = engine) -> bool:
            assert not has_exited(engine.process), f"{engine.url} ended: {log_tail(engine.log, lines=6)}"
            try:
                asyncio.run(real_token(engine.url, engine.engine_model))
            except EngineUnreachable:
                return False
            return True

        try:
            until(answers, f"a token from {engine.url}", max(deadline - time.monotonic(), 1.0))
        except AssertionError as error:
            raise AssertionError(f"{error} ({log_tail(engine.log, lines=6)})") from None


@contextmanager
def running_light_engine(folder: Path, *, slots: int = 4, context: int = 2048) -> Iterator[RealEngine]:
    """The light engine with the real small model."""
    [port] = free_ports(1)
    log = folder / "light.log"
    words = ["--port", str(port), "--slots", str(slots), "--context", str(context)]
    with started("light", [sys.executable, "-m", "engine.light", *words], {}, log) as process:
        engine = RealEngine(f"http://127.0.0.1:{port}", "light", "smollm2", slots, context, log, process)
        wait_for_token([engine], LIGHT_START_SECONDS)
        yield engine


@pytest.fixture(scope="session")
def light_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """One light engine for the whole session."""
    with running_light_engine(tmp_path_factory.mktemp("light")) as engine:
        yield engine
