"""A PostgreSQL that a test may kill, freeze and start again."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests import databases
from tests.waiting import until
from tollgate.embedded.postgres import Postgres
from tollgate.supervisor.ports import free_ports
from tollgate.supervisor.process import spawn, stop


@dataclass
class OwnPostgres:
    """One server and its database, migrated."""

    server: Postgres
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        self.process = spawn(self.server.prepare(), self.log)
        until(self.server.is_ready, "PostgreSQL takes connections", 30)

    def kill(self) -> None:
        """kill -9 of the server and all its sessions."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def freeze(self) -> None:
        """It keeps its connections open and answers nothing."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        # Sessions of PostgreSQL lead process groups of their own.
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        for pid in [self.process.pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def own_postgres(folder: Path) -> Iterator[OwnPostgres]:
    """A server of the test's own, stopped when the block ends."""
    (port,) = free_ports(1)
    own = OwnPostgres(
        Postgres(folder / "postgres", port, "superuser", "password", durable=False), folder / "log"
    )
    try:
        own.start()
        own.server.ensure_database()
        databases.migrate(own.url)
        yield own
    finally:
        own.thaw()
        if own.process is not None:
            stop(own.process, signal.SIGINT, 10)
