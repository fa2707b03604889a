"""What is left of a `tollgate up`: processes by their descent, session and environment, and held ports."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tollgate.supervisor.leftovers import MARK, start_time


@dataclass(frozen=True, slots=True)
class Family:
    """All processes of one run at one moment: start time (clock ticks) by pid, and the sessions they led."""

    members: dict[int, int]
    sessions: frozenset[int]

    def left(self, home: Path) -> list[str]:
        """Who of them, of their sessions, or with the home's name in its environment still runs."""
        found = {pid for pid, started in self.members.items() if start_time(pid) == started}
        marks = {f"{name}={home}".encode() for name in ("TOLLGATE_HOME", MARK)}
        for pid in _pids():
            with contextlib.suppress(OSError):
                if _session(pid) in self.sessions or marks & set(_environment(pid)):
                    found.add(pid)
        return [f"{pid} {_words(pid)}" for pid in sorted(found) if start_time(pid) is not None]


def family(root: int) -> Family:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
    members = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        if not more:
            break
        members |= more
    started = {pid: start_time(pid) for pid in members}
    sessions = set()
    for pid in members:
        with contextlib.suppress(OSError):
            sessions.add(_session(pid))
    return Family({pid: at for pid, at in started.items() if at is not None}, frozenset(sessions))


def held(ports: Iterable[int]) -> list[int]:
    """Ports on which nobody else could listen."""
    found = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen()
            except OSError:
                found.append(port)
    return found


def listens(pid: int, port: int) -> bool:
    """Whether a process has the listening socket of a port open (proc_net_tcp(5): state 0A is LISTEN)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            socket_name = f"socket:[{fields[9]}]"
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if descriptor.readlink().name == socket_name:
                        return True
    return False


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat(pid: int) -> list[str]:
    """State, parent, group, session and so on (proc_pid_stat(5), from field 3). Raises OSError."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def _session(pid: int) -> int:
    return int(_stat(pid)[3])


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    return ""
