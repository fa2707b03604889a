"""A `tollgate up` of its own for a test, on free ports in a fresh home."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import until
from tollgate.home import SERVER_VARIABLES, Ready, read_ready
from tollgate.supervisor.leftovers import MARK, start_time
from tollgate.supervisor.ports import free_ports

READY_SECONDS = 60.0
STOP_SECONDS = 40.0
PORTS = ("--port", "--postgres-port", "--broker-port", "--limits-port", "--cache-port", "--engine-port")


@dataclass
class Up:
    """One start. ports: by option; given: environment variables on top of a clean environment."""

    home: Path
    ports: dict[str, int]
    given: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self.ports["--port"]

    def start(self, *words: str) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tollgate", "up", *self._port_words(), *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def fails(self, *words: str) -> str:
        """Start, expect exit code 1 and one sentence, which is returned; nothing runs afterwards."""
        done = subprocess.run(
            [sys.executable, "-m", "tollgate", "up", *self._port_words(), *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
            check=False,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        (sentence,) = done.stderr.splitlines()
        assert sentence.startswith("tollgate: ")
        assert sentence.endswith(".")
        assert not (self.home / "ready.json").exists()
        assert self.processes() == []
        return sentence

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if name not in SERVER_VARIABLES}
        return clean | {"TOLLGATE_HOME": str(self.home)} | dict(self.given)

    def ready(self) -> Ready:
        """Wait until it is."""

        def look() -> Ready | None:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            return read_ready(self.home)

        return until(look, f"ready: {self.said()}", READY_SECONDS)

    def stop(self, number: int = signal.SIGINT) -> int:
        """Signal it and wait; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    @property
    def output(self) -> Path:
        return self.home.with_name(self.home.name + ".out")

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def processes(self) -> list[int]:
        """Whatever runs with this home's name in its environment, or is a child that was recorded."""
        marks = {f"{name}={self.home}".encode() for name in ("TOLLGATE_HOME", MARK)}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and marks & set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
        return [pid for pid in found if start_time(pid) is not None]

    def listening(self) -> list[int]:
        """Which of the ports have a listener."""
        found = []
        for port in self.ports.values():
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(port)
        return found

    def _port_words(self) -> list[str]:
        return [word for option, port in self.ports.items() for word in (option, str(port))]


@contextlib.contextmanager
def an_up(given: Mapping[str, str] | None = None, home: Path | None = None) -> Iterator[Up]:
    """An Up that is not started yet; at the end of the block whatever runs of it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        up = Up(
            home or Path(folder) / "home", dict(zip(PORTS, free_ports(len(PORTS)), strict=True)), given or {}
        )
        try:
            yield up
        finally:
            if up.process is not None and up.process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    up.stop()
                up.process.kill()
                up.process.wait()


def call(up: Up, key: str, model: str, **more: Any) -> tuple[int, dict[str, str], Any]:
    """One chat call with curl's patience: status, headers in lower case, JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=30)
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **more}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            json.loads(content),
        )
