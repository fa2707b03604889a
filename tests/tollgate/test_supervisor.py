"""Children: restarted when they die, stopped in order, and never outliving their supervisor."""

import asyncio
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import until
from tollgate.errors import ServerFailed
from tollgate.supervisor import leftovers
from tollgate.supervisor.part import Part, Tier
from tollgate.supervisor.process import Command
from tollgate.supervisor.supervisor import Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 3, 15)];"
    "print('up', flush=True); time.sleep(60)"
)
# Writes its name into a file when it is told to stop.
NOTING = (
    "import signal, sys, time\n"
    "def stop(*_):\n"
    "    open(sys.argv[1], 'a').write(sys.argv[2] + '\\n'); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop); print('up', flush=True); time.sleep(60)\n"
)
PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('up', flush=True); print(child.pid, flush=True); time.sleep(60)"
)


def _part(name: str, code: str, *words: str, tier: Tier = Tier.API) -> Part:
    command = Command(name=name, argv=(sys.executable, "-c", code, *words))
    return Part(
        name=name, tier=tier, prepare=lambda: command, ready_line=b"up", start_seconds=10, stop_seconds=5
    )


class _Told:
    """What a supervisor said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures: list[ServerFailed] = []


def _run(home: Path, work: Callable[[Supervisor, _Told], Awaitable[None]]) -> _Told:
    told = _Told()

    async def main() -> None:
        supervisor = Supervisor(
            home, say=told.lines.append, changed=lambda: None, failed=told.failures.append
        )
        supervisor.watch()
        try:
            await work(supervisor, told)
        finally:
            await supervisor.stop()
        assert supervisor.pids() == {}

    asyncio.run(main())
    return told


async def _until(look: Callable[[], object], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    return leftovers.start_time(pid) is not None


def test_a_child_that_dies_is_started_again_and_said_so(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(_part("api-1", SLEEPER))
        supervisor.all_ready()
        first = supervisor.pids()["api-1"]
        os.kill(first, signal.SIGKILL)
        await _until(lambda: any("is back" in line for line in told.lines))
        assert supervisor.pids()["api-1"] != first

    told = _run(tmp_path, work)
    assert told.lines[0] == "api-1 died (signal 9); it is started again."
    assert told.lines[1].startswith("api-1 is back after")


def test_a_child_is_started_again_although_nobody_can_be_told(tmp_path: Path) -> None:
    async def main() -> None:
        def say(line: str) -> None:
            raise BrokenPipeError(line)

        supervisor = Supervisor(tmp_path, say=say, changed=lambda: None, failed=print)
        supervisor.watch()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await supervisor.start(_part("api-1", SLEEPER))
        supervisor.all_ready()
        first = supervisor.pids()["api-1"]
        os.kill(first, signal.SIGKILL)
        await _until(lambda: supervisor.pids().get("api-1", first) != first)
        await supervisor.stop()

    asyncio.run(main())


def test_restarts_of_a_child_that_keeps_dying_come_at_growing_intervals(tmp_path: Path) -> None:
    starts: list[float] = []

    def prepare() -> Command:
        starts.append(time.monotonic())
        code = "print('up', flush=True)" if len(starts) > 1 else SLEEPER
        return Command(name="drainer", argv=(sys.executable, "-c", code))

    async def work(supervisor: Supervisor, told: _Told) -> None:
        part = replace(_part("drainer", ""), prepare=prepare)
        await supervisor.start(part)
        supervisor.all_ready()
        os.kill(supervisor.pids()["drainer"], signal.SIGKILL)
        await _until(lambda: len(starts) >= 5)

    _run(tmp_path, work)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts[1:])]
    assert gaps[0] >= 0.2
    assert gaps[1] >= 0.5
    assert gaps[2] >= 1.0


def test_a_death_before_all_are_ready_fails_the_start(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(_part("limits", SLEEPER))
        os.kill(supervisor.pids()["limits"], signal.SIGKILL)
        await _until(lambda: told.failures)

    told = _run(tmp_path, work)
    assert "limits stopped while starting" in str(told.failures[0])


def test_a_child_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        with pytest.raises(
            ServerFailed, match=r"engine-1 stopped while starting: no such model .*engine-1\.log"
        ):
            await supervisor.start(_part("engine-1", "raise SystemExit('no such model')"))

    _run(tmp_path, work)


def test_parts_stop_tier_by_tier_the_api_first_and_the_database_last(tmp_path: Path) -> None:
    order = tmp_path / "order"

    async def work(supervisor: Supervisor, told: _Told) -> None:
        for tier in (Tier.ENGINE, Tier.DATABASE, Tier.API, Tier.STORES, Tier.BOOKS):
            await supervisor.start(_part(tier.name, NOTING, str(order), tier.name, tier=tier))
        supervisor.all_ready()

    _run(tmp_path, work)
    assert order.read_text().split() == ["API", "BOOKS", "ENGINE", "STORES", "DATABASE"]


def test_a_child_that_ignores_the_stop_is_killed_within_its_limit(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(replace(_part("engine-1", STUBBORN), stop_seconds=0.2))

    began = time.monotonic()
    _run(tmp_path, work)
    assert time.monotonic() - began < 5


def test_what_a_child_started_goes_with_it(tmp_path: Path) -> None:
    found: list[int] = []

    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(_part("engine-1", PARENT))
        log = tmp_path / "logs" / "engine-1.log"
        await _until(lambda: len(log.read_text().split()) == 2)
        found.append(int(log.read_text().split()[1]))

    _run(tmp_path, work)
    until(lambda: not _alive(found[0]), "the grandchild is gone")


def test_each_child_leads_a_process_group_of_its_own(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(_part("api-1", SLEEPER))
        pid = supervisor.pids()["api-1"]
        assert os.getpgid(pid) == pid

    _run(tmp_path, work)


SUPERVISING = """
import asyncio, sys
from pathlib import Path
from tests.tollgate.test_supervisor import SLEEPER, STUBBORN, _part
from tollgate.supervisor.supervisor import Supervisor

async def main():
    supervisor = Supervisor(Path(sys.argv[1]), say=print, changed=lambda: None, failed=print)
    supervisor.watch()
    await supervisor.start(_part("api-1", SLEEPER))
    await supervisor.start(_part("engine-1", STUBBORN))
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_killed_supervisor_leaves_no_child_and_the_next_start_ends_a_stubborn_one(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == "ready\n"
    pids = {record.name: record.pid for record in leftovers.read_records(tmp_path)}
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    until(lambda: not _alive(pids["api-1"]), "the child got its death signal")
    assert _alive(pids["engine-1"])  # it ignores every signal that can be ignored
    leftovers.END_SECONDS, before = 0.2, leftovers.END_SECONDS
    try:
        assert leftovers.end_leftovers(tmp_path) == ["engine-1"]
    finally:
        leftovers.END_SECONDS = before
    assert not _alive(pids["engine-1"])  # at once: its port is bound next


def test_a_process_that_got_a_leftovers_number_is_spared(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL) as other:
        started = leftovers.start_time(other.pid)
        assert started is not None
        record = leftovers.Record(name="api-1", pid=other.pid, started=started - 1, tier=4, stop_signal=15)
        leftovers.write_records(tmp_path, [record])
        assert leftovers.end_leftovers(tmp_path) == []
        assert other.poll() is None
        other.kill()


def test_a_record_of_another_boot_proves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL) as other:
        started = leftovers.start_time(other.pid)
        assert started is not None
        record = leftovers.Record(
            name="api-1", pid=other.pid, started=started, tier=4, stop_signal=15, boot="before"
        )
        leftovers.write_records(tmp_path, [record])
        assert leftovers.end_leftovers(tmp_path) == []
        assert other.poll() is None
        other.kill()


def test_a_leftover_that_ends_by_itself_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    record = leftovers.Record(name="api-1", pid=ended.pid, started=1, tier=4, stop_signal=15)
    leftovers.write_records(tmp_path, [record])
    looks = iter([True])  # it runs when it is looked for, and is gone when it is signalled
    monkeypatch.setattr(leftovers, "_runs", lambda record: next(looks, False))
    assert leftovers.end_leftovers(tmp_path) == ["api-1"]


def test_on_a_full_disk_a_part_comes_back_without_records_and_ready_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(home: Path, records: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(replace(_part("drainer", ""), prepare=lambda: commands.pop(0)))
        supervisor.all_ready()
        monkeypatch.setattr(leftovers, "write_records", full)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 0))
        for time_back in (1, 2):
            os.kill(supervisor.pids()["drainer"], signal.SIGKILL)
            await _until(lambda n=time_back: sum("is back" in line for line in told.lines) == n)

    silent = "import time; time.sleep(60)"
    commands = [
        Command(name="drainer", argv=(sys.executable, "-c", code)) for code in (SLEEPER, silent, silent)
    ]
    told = _run(tmp_path, work)
    assert sum("cannot be written down" in line for line in told.lines) == 1
    assert not any("not back" in line for line in told.lines)


def test_records_of_children_are_private_and_follow_every_start(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: _Told) -> None:
        await supervisor.start(_part("api-1", SLEEPER))
        (record,) = json.loads((tmp_path / "children.json").read_text())
        assert record["pid"] == supervisor.pids()["api-1"]
        assert (tmp_path / "children.json").stat().st_mode & 0o077 == 0

    _run(tmp_path, work)
    assert leftovers.read_records(tmp_path) == []
