"""No gateway at all: the first stand-in engine alone. Its CPU is the engine's, its latency the floor."""

import contextlib
from collections.abc import Iterator

from bench.peers import Stage, Target
from bench.processes import pid_listening_on

TITLE = "no gateway (the stand-in engine itself)"


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    url = stage.engines[0]
    yield Target(url, pid_listening_on(int(url.rsplit(":", 1)[1])))
