"""The processes of a home: written down while they run, so that the next start can end what was left behind.

A child gets a signal from the kernel when its supervisor dies. One that needs long, ignores the signal or
left children of its own may still run when the next `tollgate up` starts: that one ends it. A pid alone
proves nothing (numbers are given out again), so the start time is kept with it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tollgate.embedded.passwords import write_private
from tollgate.supervisor.process import POLL_SECONDS, signal_group

END_SECONDS = 12.0
MARK = "TOLLGATE_SUPERVISED"  # set in the environment of every child to the home it belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One child: its start time is in clock ticks since boot (/proc/PID/stat, field 22)."""

    name: str
    pid: int
    started: int
    tier: int
    stop_signal: int


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none (or only a zombie)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def write_records(home: Path, records: Iterable[Record]) -> None:
    """Replace the list of running children."""
    write_private(home / "children.json", json.dumps([asdict(record) for record in records], indent=1) + "\n")


def read_records(home: Path) -> list[Record]:
    """The children that the last supervisor of this home had started."""
    try:
        return [Record(**record) for record in json.loads((home / "children.json").read_text())]
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return []


def end_leftovers(home: Path) -> list[str]:
    """End every recorded process that still runs, in the order of a stop; returns their names."""
    records = read_records(home)
    ended = []
    for tier in sorted({record.tier for record in records}, reverse=True):
        alive = [record for record in records if record.tier == tier and _runs(record)]
        for record in alive:
            os.kill(record.pid, record.stop_signal)
        deadline = time.monotonic() + END_SECONDS
        while any(_runs(record) for record in alive) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for record in alive:
            if _runs(record):
                signal_group(record.pid, signal.SIGKILL)
        ended += [record.name for record in alive]
    for pid in _members({record.pid for record in records}, home):
        os.kill(pid, signal.SIGKILL)
        ended.append(f"process {pid}")
    (home / "children.json").unlink(missing_ok=True)
    return ended


def _runs(record: Record) -> bool:
    return start_time(record.pid) == record.started


def _members(sessions: set[int], home: Path) -> list[int]:
    """Processes in the sessions of recorded children that carry this home's mark: their own children."""
    mark = f"{MARK}={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fields = _stat(int(entry.name))
        if fields is None or int(fields[3]) not in sessions:
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
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
