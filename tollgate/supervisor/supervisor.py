"""Starts parts, restarts what dies, stops all in order. Runs on one event loop in the main thread.

Everything that blocks (preparing, probing) runs in threads, but children are always started from the main
thread, because the kernel ties their death signal to the thread that started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tollgate.errors import ServerFailed
from tollgate.supervisor import leftovers
from tollgate.supervisor.part import Part
from tollgate.supervisor.process import Command, bury, has_exited, log_tail, signal_group, spawn
from tollgate.supervisor.threads import in_thread

PROBE_SECONDS = 0.05
BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_SECONDS = 30.0  # a child that lived this long starts again without back-off
KEEP_LOG_BYTES = 10 << 20
FULL_DISK_BYTES = 64 << 10  # with less, a part's line in its log may be lost


@dataclass(slots=True)
class Child:
    """A part and its present process."""

    part: Part
    command: Command | None = None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    log_start: int = 0  # size of the log when the process was started
    deaths: int = 0
    supervised: bool = False  # its death is answered by a restart
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """The children of one home.

    say: told one line about every restart. changed: called when the set of pids has changed. failed: called
    when a part that was ready dies before all are (`all_ready`): until then nothing is restarted.
    """

    def __init__(
        self,
        home: Path,
        *,
        say: Callable[[str], None],
        changed: Callable[[], None],
        failed: Callable[[ServerFailed], None],
    ) -> None:
        self.home = home
        self.logs = home / "logs"
        self._say = say
        self._changed = changed
        self._failed = failed
        self._all_ready = False
        self._told_unwritten = False
        self._children: dict[str, Child] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._preparing: set[asyncio.Future[Command]] = set()
        self._stopping = False

    def pids(self) -> dict[str, int]:
        """Pids of the children that run, by name."""
        return {
            name: child.process.pid
            for name, child in self._children.items()
            if child.process is not None and not child.gone.is_set()
        }

    def watch(self) -> None:
        """From now on notice the deaths of children."""
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._on_child_signal)

    def all_ready(self) -> None:
        """The start is complete: from now on a part that dies is started again."""
        self._all_ready = True

    async def start(self, part: Part) -> None:
        """Start a part and wait until it is ready; ServerFailed when it dies or takes too long."""
        child = Child(part)
        self._children[part.name] = child
        _keep_previous_log(self._log(child))
        await self._launch(child)
        await self._await_ready(child)
        child.supervised = True
        if child.gone.is_set():  # between its last answer and now
            self._on_death(child)

    async def stop(self) -> None:
        """Stop all parts, tier by tier, each within its own limit; then nothing of theirs runs."""
        self._stopping = True
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, *self._preparing, return_exceptions=True)
        for tier in sorted({child.part.tier for child in self._children.values()}, reverse=True):
            members = [child for child in self._children.values() if child.part.tier == tier]
            await asyncio.gather(*(self._end(child) for child in members))
        with contextlib.suppress(OSError):  # a full disk: the next start finds that none of them runs
            leftovers.write_records(self.home, ())

    def kill(self) -> None:
        """Stop everything now: SIGKILL to every group."""
        self._stopping = True
        for child in self._children.values():
            if child.process is not None and not child.gone.is_set():
                signal_group(child.process.pid, signal.SIGKILL)

    async def _launch(self, child: Child) -> None:
        # A stop waits for it, so that no initdb of ours is still at work when we are gone.
        preparing = asyncio.ensure_future(in_thread(child.part.prepare))
        self._preparing.add(preparing)
        preparing.add_done_callback(self._preparing.discard)
        command = await asyncio.shield(preparing)
        command = dataclasses.replace(command, env={**command.env, leftovers.MARK: str(self.home)})
        if self._stopping:
            raise asyncio.CancelledError
        child.command = command
        child.gone.clear()
        child.log_start = _size(self._log(child))
        child.process = spawn(command, self._log(child))
        child.started_at = time.monotonic()
        self._note_change()

    async def _await_ready(self, child: Child) -> None:
        deadline = time.monotonic() + child.part.start_seconds
        while not await in_thread(self._is_ready, child):
            if child.gone.is_set():
                raise self._died_at_start(child)
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{child.part.name} was not ready after {child.part.start_seconds:g} s; "
                    f"its log is {self._log(child)}."
                )
            await asyncio.sleep(PROBE_SECONDS)

    def _on_child_signal(self) -> None:
        for child in self._children.values():
            if child.process is None or child.gone.is_set() or not has_exited(child.process):
                continue
            bury(child.process)
            child.gone.set()
            if child.supervised:
                self._on_death(child)

    def _is_ready(self, child: Child) -> bool:
        said = _has_line(self._log(child), child.log_start, child.part.ready_line)
        return (said or self._cannot_say_so()) and child.part.is_ready()

    def _cannot_say_so(self) -> bool:
        """On a full disk a part that comes back may be unable to write its ready line."""
        return self._all_ready and shutil.disk_usage(self.logs).free < FULL_DISK_BYTES

    def _on_death(self, child: Child) -> None:
        if self._stopping or child.process is None:
            return
        if not self._all_ready:
            self._failed(self._died_at_start(child))
            return
        self._plan_restart(child)
        self._say(f"{child.part.name} died ({_cause(child.process.returncode)}); it is started again.")

    def _died_at_start(self, child: Child) -> ServerFailed:
        log = self._log(child)
        reason = log_tail(log, start=child.log_start) or "no output"
        return ServerFailed(f"{child.part.name} stopped while starting: {reason} (log: {log}).")

    def _plan_restart(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(self._restart(child))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, child: Child) -> None:
        child.supervised = False
        died_at = time.monotonic()
        if died_at - child.started_at > STEADY_SECONDS:
            child.deaths = 0
        while True:
            pause = BACK_OFF_SECONDS[min(child.deaths, len(BACK_OFF_SECONDS) - 1)]
            child.deaths += 1
            await asyncio.sleep(pause)
            try:
                await self._launch(child)
                await self._await_ready(child)
            except (ServerFailed, OSError) as error:
                await self._end(child)
                self._say(f"{child.part.name} is not back yet: {error}")
                continue
            break
        child.supervised = True
        self._say(f"{child.part.name} is back after {time.monotonic() - died_at:.1f} s.")
        if child.gone.is_set():
            self._on_death(child)

    async def _end(self, child: Child) -> None:
        if child.process is None or child.command is None or child.gone.is_set():
            return
        child.supervised = False
        child.process.send_signal(child.command.stop_signal)
        try:
            await asyncio.wait_for(child.gone.wait(), child.part.stop_seconds)
        except TimeoutError:
            if not self._stopping:
                self._say(
                    f"{child.part.name} did not stop within {child.part.stop_seconds:g} s; it is killed."
                )
            signal_group(child.process.pid, signal.SIGKILL)
            await child.gone.wait()

    def _note_change(self) -> None:
        """Write down who runs. Once all were up, a full disk keeps nobody from coming back: it may be the
        drainer, which makes room."""
        try:
            leftovers.write_records(self.home, self._records())
            self._changed()
        except OSError as error:
            if not self._all_ready:
                raise
            if not self._told_unwritten:
                self._say(f"Who runs cannot be written down in {self.home}: {error.strerror or error}.")
            self._told_unwritten = True
        else:
            self._told_unwritten = False

    def _records(self) -> Iterable[leftovers.Record]:
        for name, pid in self.pids().items():
            child = self._children[name]
            started = leftovers.start_time(pid)
            if started is not None and child.command is not None:
                yield leftovers.Record(
                    name=name,
                    pid=pid,
                    started=started,
                    tier=child.part.tier,
                    stop_signal=child.command.stop_signal,
                )

    def _log(self, child: Child) -> Path:
        return self.logs / f"{child.part.name}.log"


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def _has_line(log: Path, start: int, line: bytes) -> bool:
    if not line:
        return True
    with log.open("rb") as text:
        text.seek(start)
        return line in text.read()


def _cause(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def _keep_previous_log(log: Path) -> None:
    """Move a large log aside, so that logs do not grow for ever over many starts."""
    try:
        if log.stat().st_size > KEEP_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
    except FileNotFoundError:
        return
