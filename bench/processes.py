"""Processes of a bench: each on its core, its CPU counted with that of its children, ended for sure."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 120.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Cores:
    """The gateway under test has one core to itself; engines, load, databases share the other."""

    gateway: int
    rest: int


def cores() -> Cores:
    """The first two cores that we may use; one core does for both where there is no second."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[-1] if len(usable) == 1 else usable[1])


def tree_usage(pid: int) -> tuple[float, int]:
    """CPU seconds (dead children's too, once waited for) and resident bytes of a process and its descendants.

    By descent, not by process group: PostgreSQL gives each of its backends a group of its own.
    """
    parents, usage = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(name)] = int(fields[1])
        usage[int(name)] = (sum(map(int, fields[11:15])) / TICK, int(fields[21]) * PAGE)
    cpu, resident = 0.0, 0
    for one in usage:
        ancestor = one
        while ancestor not in (pid, 0):
            ancestor = parents.get(ancestor, 0)
        if ancestor == pid:
            cpu, resident = cpu + usage[one][0], resident + usage[one][1]
    return cpu, resident


def pid_listening_on(port: int) -> int:
    """The process that has the listening socket of a port of ours."""
    tables = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in tables if row[1].endswith(f":{port:04X}") and row[3] == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == Path(f"socket:[{inode}]"):
                return int(link.parts[2])
    raise LookupError(f"nobody of ours listens on port {port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(words: Sequence[str | Path], log: Path, *, core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process group on one core, its output in `log`, until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_answer(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    """Waits until GET `path` is answered with 200."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            if b" 200 " in sock.recv(64):
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"bench: no answer on port {port}; see {log}:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
