"""A limits server that a test has to itself: it may be killed, frozen, emptied and started again."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import ValkeyError
from engine.resp import Reply
from engine.valkey import ValkeyClient
from tests.waiting import until
from tollgate.embedded.valkey import Role, Valkey
from tollgate.supervisor.ports import free_ports
from tollgate.supervisor.process import spawn


class OwnValkey:
    """One server. It is not running at first."""

    def __init__(self, folder: Path, role: Role = "limits") -> None:
        self._valkey = Valkey(role, folder / role, free_ports(1)[0], "sesame")
        self._log = folder / f"{role}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self._valkey.url

    def start(self) -> None:
        command = self._valkey.prepare()
        self._process = spawn(command, self._log)
        until(self._valkey.is_ready, "the server answers")

    def kill(self) -> None:
        """As a crash of the process does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Lose all data; only while it does not run."""
        assert self._process is None
        shutil.rmtree(self._valkey.folder)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open, nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextlib.contextmanager
def own_valkey(folder: Path, role: Role = "limits") -> Iterator[OwnValkey]:
    """A running server, gone afterwards."""
    server = OwnValkey(folder, role)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def ask(client: ValkeyClient, *args: str | bytes) -> Reply | ValkeyError:
    """One command's outcome, errors as values."""
    future: asyncio.Future[Reply | ValkeyError] = asyncio.get_running_loop().create_future()
    client.call(tuple(arg.encode() if isinstance(arg, str) else arg for arg in args), future.set_result)
    return await future


async def eventually(look: Callable[[], object], what: str, within: float = 10.0) -> None:
    """Wait on the loop until `look` sees something true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not look():
        assert loop.time() < deadline, f"within {within} s: {what}"
        await asyncio.sleep(0.005)
