"""One child process: how it is started so that it cannot outlive us, and how it is stopped.

Every child leads a session and a process group of its own, so that a Ctrl-C in the terminal reaches only the
supervisor, which then stops the children in order.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.death_signal import die_with_parent

POLL_SECONDS = 0.01
# All of our environment that another account gets to see: the rest may hold secrets, and names our folders.
SHARED_VARIABLES = ("PATH", "LANG", "TZ")
SHARED_PREFIX = "LC_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run for one child.

    user: name of the account to run as (None: our own); cwd is entered before privileges are dropped, so it
    may lie where that account has no way to.
    death_signal: what the kernel sends the child when the process that started it is gone, even by SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGTERM
    pass_fds: tuple[int, ...] = ()


def identity(user: str | None) -> dict[str, Any]:
    """The arguments of subprocess that run a child as another account (None: as our own)."""
    if user is None:
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def inherited(user: str | None) -> dict[str, str]:
    """What of our environment a child that runs as this account is given (None, our own: all)."""
    return {
        name: value
        for name, value in os.environ.items()
        if user is None or name in SHARED_VARIABLES or name.startswith(SHARED_PREFIX)
    }


def spawn(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start a child whose output is appended to a log file (mode 0600).

    Call from a thread that lives as long as the child is wanted: the kernel counts the death of the forking
    *thread* as the parent's.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command.argv,
            env={**inherited(command.user), **command.env},
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            pass_fds=command.pass_fds,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid(), command.death_signal),  # noqa: PLW1509 (two system calls)
            **identity(command.user),
        )
    finally:
        os.close(descriptor)


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the leader is gone, leaving it unreaped: so its number cannot be given to anybody else yet."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def bury(process: subprocess.Popen[bytes]) -> int:
    """End what is left of the group of a leader that has exited, reap it, and return its exit status."""
    if process.returncode is None:
        signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def signal_group(pid: int, number: int) -> None:
    """Signal a whole process group; one that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def stop(process: subprocess.Popen[bytes], stop_signal: int, grace_seconds: float) -> None:
    """Ask the leader to stop, wait, then kill what is left of its group and reap it."""
    if not has_exited(process):
        process.send_signal(stop_signal)
        deadline = time.monotonic() + grace_seconds
        while not has_exited(process) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    bury(process)


def log_tail(log: Path, lines: int = 2, start: int = 0) -> str:
    """The last lines of a log (from a byte on) as one of at most 400 characters, for an error sentence."""
    try:
        with log.open("rb") as source:
            source.seek(start)
            text = source.read().decode(errors="replace")
    except OSError:
        return ""
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())[-400:]
