"""`tollgate up` as a whole: from an empty home to a bill, through deaths, to nothing left."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import vllm_wire
from tests.fakes.scripted_engine import Hold, ScriptedEngine
from tests.tollgate.starting import Up, an_up, call
from tests.waiting import until
from tollgate.home import read_ready
from tollgate.servers import Servers
from tollgate.supervisor.leftovers import start_time

NAMES = {
    "postgres",
    "valkey-broker",
    "valkey-limits",
    "valkey-cache",
    "engine-1",
    "drainer",
    "api-1",
    "api-2",
}


@pytest.fixture(scope="module")
def light() -> Iterator[Up]:
    """All of it, with the light engine and two API processes; tests in this file may kill its children."""
    with an_up() as up:
        up.start("--workers", "2")
        up.ready()
        yield up


def _gone(pid: int) -> bool:
    return start_time(pid) is None


def test_ready_json_names_everything_and_is_private(light: Up) -> None:
    path = light.home / "ready.json"
    ready = light.ready()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ready["api"] == f"http://127.0.0.1:{light.port}"
    assert ready["database_url"].startswith("postgresql://tollgate:")
    assert ready["engines"] == [f"http://127.0.0.1:{light.ports['--engine-port']}"]
    assert set(ready["pids"]) == NAMES
    for pid in ready["pids"].values():
        assert os.getpgid(pid) == pid


def test_every_process_has_a_log_of_its_own_that_others_cannot_read(light: Up) -> None:
    light.ready()
    logs = {path.stem for path in (light.home / "logs").glob("*.log")}
    assert logs >= NAMES | {"up"}
    assert stat.S_IMODE((light.home / "logs").stat().st_mode) == 0o700


def test_what_it_prints_works_pasted(light: Up) -> None:
    light.ready()
    commands = [
        line.strip()
        for line in until(
            lambda: light.said().splitlines() if "Ctrl-C stops" in light.said() else None,
            "the summary is out",
        )
        if line.startswith(("  curl", "  TOLLGATE_HOME", "  .venv", "  /"))
    ]
    assert len(commands) == 3
    said = [
        subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
        for command in commands
    ]
    answer = json.loads(said[0])
    assert answer["choices"][0]["message"]["content"]
    assert "x-cache: hit" in said[1].lower()
    again = json.loads(said[1].splitlines()[-1])
    assert again["choices"][0]["message"] == answer["choices"][0]["message"]
    assert "default/default" in said[2]


def test_the_first_token_is_booked_to_the_house_and_not_to_the_app(light: Up) -> None:
    light.ready()
    done = subprocess.run(
        [sys.executable, "-m", "tollgate", "ledger", "spend", "--json"],
        env=light.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "house" in done.stdout


def _pid(up: Up, name: str) -> int | None:
    ready = read_ready(up.home)
    return None if ready is None else ready["pids"].get(name)


@pytest.mark.parametrize(
    "name", ["api-1", "valkey-limits", "valkey-cache", "valkey-broker", "drainer", "postgres"]
)
def test_a_killed_part_comes_back_and_calls_work_again(light: Up, name: str) -> None:
    before = light.ready()
    os.kill(before["pids"][name], signal.SIGKILL)
    until(lambda: _pid(light, name) not in {None, before["pids"][name]}, f"{name} has a new pid", 20)
    until(lambda: f"{name} is back" in light.said(), f"{name} is said to be back", 20)
    until(lambda: call(light, before["app_key"], "smollm2")[0] == 200, "calls work again", 20)


@pytest.fixture
def given(servers: Servers, database: str) -> dict[str, str]:
    """The servers of the test session, so that a start has only drainer and API to run."""
    return servers.environment() | {"DATABASE_URL": database}


def test_servers_and_engines_that_run_already_are_used_instead_of_started(
    given: dict[str, str], quick_engine: ScriptedEngine
) -> None:
    with an_up(given) as up:
        up.start("--engine-url", quick_engine.url, "--free")
        ready = up.ready()
        assert set(ready["pids"]) == {"drainer", "api-1"}
        assert ready["database_url"] == given["DATABASE_URL"]
        assert ready["engines"] == [quick_engine.url.removesuffix("/v1")]
        assert call(up, ready["app_key"], vllm_wire.MODEL)[0] == 200
        assert "free" in up.said()
        assert up.stop(signal.SIGTERM) == 0


def test_callers_wait_while_the_only_api_process_is_replaced(
    given: dict[str, str], quick_engine: ScriptedEngine
) -> None:
    with an_up(given) as up:
        up.start("--engine-url", quick_engine.url)
        ready = up.ready()
        os.kill(ready["pids"]["api-1"], signal.SIGKILL)
        status, _, answer = call(up, ready["app_key"], vllm_wire.MODEL)
        assert (status, answer["object"]) == (200, "chat.completion")


def test_a_stop_leaves_no_process_no_port_and_no_ready_json_and_the_next_start_finds_the_data(
    quick_engine: ScriptedEngine, tmp_path: Path
) -> None:
    with an_up(home=tmp_path / "home") as up:
        up.start("--engine-url", quick_engine.url)
        first = up.ready()
        assert call(up, first["app_key"], vllm_wire.MODEL, temperature=0)[0] == 200
        assert up.stop() == 0
        assert up.processes() == []
        assert all(_gone(pid) for pid in first["pids"].values())
        assert up.listening() == []
        assert not (up.home / "ready.json").exists()
        up.start("--engine-url", quick_engine.url)
        second = up.ready()
        assert second["app_key"] == first["app_key"]
        assert second["admin_key"] == first["admin_key"]
        spent = subprocess.run(
            [sys.executable, "-m", "tollgate", "ledger", "spend", "--json", "--app", "default/default"],
            env=up.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert [line["calls"] for line in json.loads(spent.stdout)] == [1]


def test_a_killed_supervisor_leaves_nothing_that_blocks_the_next_start(quick_engine: ScriptedEngine) -> None:
    with an_up() as up:
        up.start("--engine-url", quick_engine.url)
        ready = up.ready()
        assert up.process is not None
        up.process.kill()
        up.process.wait()
        until(lambda: all(_gone(pid) for pid in ready["pids"].values()), "all children are gone", 20)
        assert up.listening() == []
        (up.home / "ready.json").unlink()
        up.start("--engine-url", quick_engine.url)
        assert up.ready()["app_key"] == ready["app_key"]
        up.process.kill()
        up.process.wait()
        (up.home / "ready.json").unlink()
        up.start("--engine-url", quick_engine.url)  # at once, while the children are still ending
        assert up.ready()["app_key"] == ready["app_key"]


def test_a_second_ctrl_c_kills_at_once(quick_engine: ScriptedEngine) -> None:
    with an_up() as up:
        up.start("--engine-url", quick_engine.url)
        ready = up.ready()
        assert up.process is not None
        os.kill(ready["pids"]["api-1"], signal.SIGSTOP)  # it will not stop by itself
        up.process.send_signal(signal.SIGINT)
        until(lambda: "Stopping" in up.said(), "it is stopping")
        assert up.stop() == 128 + signal.SIGINT
        until(lambda: all(_gone(pid) for pid in ready["pids"].values()), "all children are gone", 20)


def test_ctrl_c_does_not_wait_for_an_engine_that_is_silent(given: dict[str, str]) -> None:
    with ScriptedEngine() as silent, an_up(given) as up:
        silent.always(lambda request: [Hold()])
        up.start("--engine-url", silent.url)
        silent.wait_requests(1, within=60)
        began = time.monotonic()
        assert up.stop() == 128 + signal.SIGINT
        assert time.monotonic() - began < 15
        assert up.processes() == []


def test_ctrl_c_during_the_start_leaves_nothing(quick_engine: ScriptedEngine) -> None:
    with an_up() as up:
        up.start("--engine-url", quick_engine.url)
        until(lambda: "postgres ..." in up.said(), "it is starting")
        assert up.stop() == 128 + signal.SIGINT
        assert up.processes() == []
        assert up.listening() == []
