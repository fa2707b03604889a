"""PostgreSQL and Valkey from their wheels: who gets in, what they keep, what they may forget."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.waiting import until
from tollgate.embedded import postgres as postgres_module
from tollgate.embedded.passwords import passwords_in
from tollgate.embedded.postgres import Postgres
from tollgate.errors import ServerFailed
from tollgate.servers import Servers, running_servers
from tollgate.supervisor.ports import free_ports
from tollgate.supervisor.process import Command, spawn, stop


def _setting(url: str, name: str) -> str:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found: dict[str, str] = client.config_get(name)
        return found[name]


def test_each_valkey_keeps_and_forgets_by_its_role(servers: Servers) -> None:
    for url in (servers.broker_url, servers.limits_url):
        assert _setting(url, "appendonly") == "yes"
        assert _setting(url, "maxmemory-policy") == "noeviction"
    assert _setting(servers.cache_url, "appendonly") == "no"
    assert _setting(servers.cache_url, "save") == ""
    assert _setting(servers.cache_url, "maxmemory-policy") == "allkeys-lru"
    assert int(_setting(servers.cache_url, "maxmemory")) > 0


def test_nobody_gets_in_without_the_password(servers: Servers) -> None:
    for url in (servers.broker_url, servers.limits_url, servers.cache_url):
        port = urlsplit(url).port
        assert port is not None
        with (
            redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
    wrong = servers.database_url.replace(urlsplit(servers.database_url).password or "", "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_servers_listen_on_loopback_only(servers: Servers) -> None:
    with psycopg.connect(servers.superuser_url) as connection:
        row = connection.execute(
            "SELECT current_setting('listen_addresses'), current_setting('unix_socket_directories')"
        ).fetchone()
    assert row == ("127.0.0.1", "")
    for url in (servers.broker_url, servers.limits_url, servers.cache_url):
        assert _setting(url, "bind") == "127.0.0.1"


def test_no_password_stands_on_a_command_line(servers: Servers) -> None:
    passwords = [urlsplit(url).password or "" for url in servers.environment().values()]
    for pid in servers.pids.values():
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        assert not any(password in line for password in passwords)


def test_the_application_owns_its_database_and_is_no_superuser(servers: Servers) -> None:
    with psycopg.connect(servers.database_url) as connection:
        assert connection.execute("SELECT usesuper FROM pg_user WHERE usename = current_user").fetchone() == (
            False,
        )
        connection.execute("CREATE TABLE made_here (x int); DROP TABLE made_here")


def test_data_and_passwords_survive_a_restart_in_a_folder_that_others_cannot_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    home = tmp_path / "home"
    with running_servers(home) as first:
        with psycopg.connect(first.database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(first.limits_url) as client:
            client.set("kept", 42)
    assert stat.S_IMODE((home / "passwords.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "limits" / "valkey.conf").stat().st_mode) == 0o600
    with running_servers(home) as second:
        with psycopg.connect(second.database_url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        with redis.Redis.from_url(second.limits_url) as client:
            assert client.get("kept") == b"42"


def _postgres(folder: Path) -> Postgres:
    words = passwords_in(folder)
    return Postgres(folder / "postgres", free_ports(1)[0], words.postgres_superuser, words.postgres, False)


def test_a_pid_file_whose_number_is_somebody_elses_now_does_not_block_the_start(tmp_path: Path) -> None:
    postgres = _postgres(tmp_path)
    postgres.prepare()
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (postgres.data / "postmaster.pid").write_text(f"{sleeper.pid}\n{postgres.data}\n1\n")
        server = spawn(postgres.prepare(), tmp_path / "log")
        try:
            until(postgres.is_ready, "PostgreSQL answers")
        finally:
            stop(server, signal.SIGINT, 10)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_server_left_on_the_data_is_ended_before_the_next_starts(tmp_path: Path) -> None:
    postgres = _postgres(tmp_path)
    left = spawn(postgres.prepare(), tmp_path / "log")
    try:
        until(postgres.is_ready, "the first answers")
        (postgres.data / "postmaster.pid").stat()
        again = postgres.prepare()
        assert left.wait(5) == 0
        server = spawn(again, tmp_path / "log")
        try:
            until(postgres.is_ready, "the second answers")
        finally:
            stop(server, signal.SIGINT, 10)
    finally:
        stop(left, signal.SIGKILL, 5)


def test_an_initdb_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    postgres = _postgres(tmp_path)
    unfinished = postgres.folder / "data.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    postgres.prepare()
    assert not unfinished.exists()
    assert (postgres.data / "global" / "pg_control").exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path, servers: Servers) -> None:
    postgres = _postgres(tmp_path)
    postgres.prepare()
    (postgres.data / "postgresql.conf").write_text("no_such_setting = 1\n")
    from tollgate import servers as module

    with (
        pytest.raises(ServerFailed, match="no_such_setting"),
        module._running(postgres.prepare(), tmp_path, postgres.is_ready),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")
def test_as_root_the_database_runs_as_nobody(servers: Servers) -> None:
    status = Path(f"/proc/{servers.pids['postgres']}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("Uid:")]
    assert "0" not in line.split()[1:]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")
def test_a_child_of_another_account_gets_nothing_secret_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    command = Command(name="env", argv=("/usr/bin/env",), env={"MARK": "home"}, user="nobody", cwd=Path("/"))
    assert spawn(command, tmp_path / "log").wait(10) == 0
    names = {line.partition("=")[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert {"PATH", "LC_TIME", "MARK"} <= names
    assert {name for name in names if not name.startswith("LC_")} <= {"PATH", "LANG", "TZ", "MARK"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")
def test_programs_in_a_folder_that_nobody_can_enter_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = postgres_module.installed_package()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    for name in (installed.name, f"{installed.name}.libs"):
        shutil.copytree(installed.with_name(name), hidden / name, symlinks=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_folder:
        Path(open_folder).chmod(0o755)
        monkeypatch.setattr(postgres_module, "installed_package", lambda: hidden / installed.name)
        monkeypatch.setattr(postgres_module, "COPY_FOLDERS", (Path(open_folder) / "tollgate",))
        programs = postgres_module.reachable_binaries("nobody")
        assert programs.is_relative_to(open_folder)
        made = (programs / "postgres").stat().st_ino
        assert postgres_module.reachable_binaries("nobody") == programs
        assert (programs / "postgres").stat().st_ino == made
        server = spawn(_postgres(tmp_path).prepare(), tmp_path / "log")
        stop(server, signal.SIGINT, 10)
        (Path(open_folder) / "tollgate").chmod(0o777)
        with pytest.raises(ServerFailed, match="others can write"):
            postgres_module.reachable_binaries("nobody")
