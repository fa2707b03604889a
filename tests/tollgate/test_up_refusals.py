"""`tollgate up` that cannot start: one sentence that says what and what to do, and nothing half-started."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.fakes.scripted_engine import ScriptedEngine
from tests.tollgate.starting import PORTS, an_up
from tollgate.servers import Servers


@pytest.mark.parametrize("option", PORTS)
def test_a_taken_port_names_the_port_and_the_option_that_moves_it(option: str) -> None:
    with an_up() as up, socket.socket() as taken:
        taken.bind(("127.0.0.1", up.ports[option]))
        taken.listen()
        sentence = up.fails()
        assert f"Port {up.ports[option]} " in sentence
        assert f"with {option}." in sentence


def test_a_home_in_use_is_said(servers: Servers, database: str, quick_engine: ScriptedEngine) -> None:
    given = servers.environment() | {"DATABASE_URL": database}
    with an_up(given) as first, an_up(given, home=first.home) as second:
        first.start("--engine-url", quick_engine.url)
        first.ready()
        done = subprocess.run(
            [sys.executable, "-m", "tollgate", "up"],
            env=second.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        (sentence,) = done.stderr.splitlines()
        assert f"{first.home} is in use by a running `tollgate up`" in sentence
        assert first.process is not None
        assert str(first.process.pid) in sentence
        assert (first.home / "ready.json").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://tollgate:secret@127.0.0.1:1/tollgate", "PostgreSQL at 127.0.0.1:1 (DATABASE_URL)"),
        ("postgresql+asyncpg://u:secret@127.0.0.1/x", "DATABASE_URL is no PostgreSQL address"),
        ("secret", "DATABASE_URL is no PostgreSQL address"),
        ("postgresql://u:secret@[::1/x", "DATABASE_URL is no PostgreSQL address"),
        ("postgresql://u:secret@no-such-host.invalid/x", "no-such-host.invalid"),
        ("postgresql://u:no%zzsecret@127.0.0.1/x", "percent-encode special characters"),
        ("postgresql://u:no@secret@127.0.0.1:1/x", "percent-encode special characters"),
        ("postgresql://u:1/secret@127.0.0.1:1/x", "percent-encode special characters"),
    ],
)
def test_a_database_url_that_cannot_be_used_is_said_without_its_password(url: str, why: str) -> None:
    with an_up({"DATABASE_URL": url}) as up:
        sentence = up.fails()
        assert why in sentence
        assert "secret" not in sentence


def test_a_wrong_password_and_a_missing_database_are_said(servers: Servers) -> None:
    wrong = servers.database_url.replace("tollgate:", "tollgate:no", 1)
    for url, why in (
        (wrong, "password authentication failed"),
        (servers.database_url + "x", "does not exist"),
    ):
        with an_up({"DATABASE_URL": url}) as up:
            assert why in up.fails()


def test_a_user_who_may_not_create_tables_is_said(servers: Servers, quick_engine: ScriptedEngine) -> None:
    with psycopg.connect(servers.superuser_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'secret'")
        connection.execute("CREATE DATABASE readable")
    url = urlsplit(servers.superuser_url)._replace(path="/readable")
    url = url._replace(netloc=f"reader:secret@127.0.0.1:{url.port}")
    with an_up(servers.environment() | {"DATABASE_URL": url.geturl()}) as up:
        sentence = up.fails("--engine-url", quick_engine.url)
        assert "permission denied for schema public" in sentence


@pytest.mark.parametrize("variable", ["BROKER_URL", "LIMITS_URL", "CACHE_URL"])
def test_a_valkey_that_is_away_is_said(variable: str) -> None:
    with an_up({variable: "redis://:secret@127.0.0.1:1/0"}) as up:
        sentence = up.fails()
        assert f"Valkey at 127.0.0.1:1 ({variable}) cannot be used" in sentence
        assert "secret" not in sentence


@pytest.mark.parametrize("password", ["secret/1", "1/secret"])
def test_a_valkey_url_that_cannot_be_read_is_said_without_its_password(password: str) -> None:
    with an_up({"BROKER_URL": f"redis://:{password}@127.0.0.1:1/0"}) as up:
        sentence = up.fails()
        assert "BROKER_URL is malformed" in sentence
        assert "secret" not in sentence


@pytest.mark.parametrize("written", ["", ":wrong@"])
def test_a_valkey_that_wants_another_password_says_so(servers: Servers, written: str) -> None:
    url = urlsplit(servers.environment()["BROKER_URL"])
    with an_up({"BROKER_URL": f"redis://{written}{url.hostname}:{url.port}/0"}) as up:
        sentence = up.fails()
        assert f"Valkey at {url.hostname}:{url.port} wants another password" in sentence
        assert "BROKER_URL" in sentence
        assert "wrong" not in sentence


def test_an_engine_that_is_away_is_said() -> None:
    with an_up() as up:
        assert "127.0.0.1:1" in up.fails("--engine-url", "http://127.0.0.1:1/v1")


def test_a_model_that_the_engine_does_not_serve_is_said_with_those_that_it_does(
    quick_engine: ScriptedEngine,
) -> None:
    with an_up() as up:
        sentence = up.fails("--engine-url", quick_engine.url, "--model", "gpt-17")
        assert "gpt-17" in sentence
        assert quick_engine.model in sentence


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--price", "cheap"), "--price 'cheap'"),
        (("--price", "0.1"), "--price '0.1'"),
        (("--price", "0.1234567,1"), "at most 6 decimals"),
        (("--price", "1,2", "--free"), "contradict"),
        (("--model-file", "/nowhere.gguf"), "/nowhere.gguf"),
        (("--engine-url", "ftp://x"), "--engine-url"),
        (("--engine", "vllm", "--engine-url", "http://127.0.0.1:1"), "give one of them"),
        (("--engine-url", "http://user:secret@127.0.0.1:1"), "--engine-url"),
        (("--host", "192.0.2.1"), "192.0.2.1 is no address of this machine"),
    ],
)
def test_options_that_make_no_sense_are_said(words: tuple[str, ...], why: str) -> None:
    with an_up() as up:
        sentence = up.fails(*words)
        assert why in sentence
        assert "secret" not in sentence


def test_a_home_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file" / "home", Path("/proc/home")):
        with an_up(home=home) as up:
            assert "set TOLLGATE_HOME" in up.fails()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a small file system of its own"
)
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with an_up(home=tmp_path / "small" / "home") as up:
        (tmp_path / "small").mkdir()
        start = f"exec {shlex.quote(sys.executable)} -m tollgate up"
        mount = f"mount -t tmpfs -o size=20m tmpfs {tmp_path}/small && {start}"
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount],
            env=up.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        (sentence,) = done.stderr.splitlines()
        assert "MB are free" in sentence
        assert "make room" in sentence
