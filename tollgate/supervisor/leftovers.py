"""The processes of a home: written down while they run, so that the next start can end what was left behind.

A child gets a signal from the kernel when its supervisor dies. One that needs long, ignores the signal or
left children of its own may still run when the next `tollgate up` starts: that one ends it. A pid alone
proves nothing (numbers are given out again), so the start time is kept with it, and the
boot that it counts from.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tollgate.embedded.passwords import write_private
from tollgate.supervisor.process import POLL_SECONDS, signal_group

END_SECONDS = 12.0
GONE_SECONDS = 5.0  # after SIGKILL, until the kernel has taken down memory and sockets
MARK = "TOLLGATE_SUPERVISED"  # set in the environment of every child to the home it belongs to


def boot_id() -> str:
    """Which boot of this machine this is (random(4)); empty where that cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One child: its start time is in clock ticks (/proc/PID/stat, field 22) since that boot."""

    name: str
    pid: int
    started: int
    tier: int
    stop_signal: int
    boot: str = field(default_factory=boot_id)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none (or only a zombie)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def write_records(home: Path, records: Iterable[Record]) -> None:
    """Replace the list of running children."""
    write_private(home / "children.json", json.dumps([asdict(record) for record in records], indent=1) + "\n")


def read_records(home: Path) -> list[Record]:
    """The children that the last supervisor of this home had started since this machine booted."""
    try:
        known = [Record(**record) for record in json.loads((home / "children.json").read_text())]
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return []
    boot = boot_id()
    return [record for record in known if record.boot == boot]


def end_leftovers(home: Path) -> list[str]:
    """End every recorded process that still runs, in the order of a stop; returns their names."""
    records = read_records(home)
    ended = []
    for tier in sorted({record.tier for record in records}, reverse=True):
        alive = [record for record in records if record.tier == tier and _runs(record)]
        for record in alive:
            _send(record.pid, record.stop_signal)
        _wait_until_gone(alive, END_SECONDS)
        for record in alive:
            if _runs(record):
                signal_group(record.pid, signal.SIGKILL)
        _wait_until_gone(alive, GONE_SECONDS)
        ended += [record.name for record in alive]
    members = _members({record.pid for record in records}, home)
    for member in members:
        _send(member.pid, member.stop_signal)
    _wait_until_gone(members, GONE_SECONDS)
    ended += [member.name for member in members]
    (home / "children.json").unlink(missing_ok=True)
    return ended


def _runs(record: Record) -> bool:
    return start_time(record.pid) == record.started


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended meanwhile
        os.kill(pid, number)


def _wait_until_gone(records: Iterable[Record], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(record) for record in records) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _members(sessions: set[int], home: Path) -> list[Record]:
    """Processes in the sessions of recorded children that carry this home's mark: their own children."""
    mark = f"{MARK}={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        fields = _stat(pid)
        started = start_time(pid)
        if fields is None or started is None or int(fields[3]) not in sessions:
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(
                    Record(
                        name=f"process {pid}", pid=pid, started=started, tier=0, stop_signal=signal.SIGKILL
                    )
                )
        except OSError:
            continue
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state is 0, session 3, start time 19."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()
