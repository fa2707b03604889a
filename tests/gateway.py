"""A whole gateway for tests: API processes, a drainer, a model on given engines, apps with keys of their own.

with running_gateway(servers, database_url, folder, engines=[engine.url]) as gateway:
    app = gateway.new_app()
    ...call gateway.url with app.key...
    (row,) = app.usage_rows(1)
"""

import contextlib
import hashlib
import secrets
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from tests import databases
from tests.fakes import vllm_wire
from tests.waiting import until
from tollgate.servers import Servers
from tollgate.supervisor.process import Command, log_tail, spawn, stop

ENDPOINTS = ["chat/completions", "completions", "embeddings", "responses", "messages"]
START_SECONDS = 20.0
DRAIN_SECONDS = 15.0
STOP_SECONDS = 15.0
PLENTY = 10**9  # a limit that no test reaches


@dataclass(frozen=True)
class Price:
    """Per token, in USD."""

    prompt: Decimal = Decimal("0.000001")
    cached_prompt: Decimal = Decimal("0.0000005")
    completion: Decimal = Decimal("0.000002")

    def charge(self, prompt: int, completion: int, cached: int = 0) -> Decimal:
        return (prompt - cached) * self.prompt + cached * self.cached_prompt + completion * self.completion


@dataclass
class App:
    """One app, with one key and rows of its own."""

    gateway: "Gateway"
    id: str
    organisation_id: str
    key_id: str
    key: str

    def usage_rows(self, count: int, within: float = DRAIN_SECONDS) -> list[dict[str, Any]]:
        """The app's usage rows by time of admission, once all journals are drained and there are `count`.

        More rows than that fail at once: a call that is charged twice must not pass for two calls.
        """

        self.wait_usage(count, within)
        return self.gateway.rows("SELECT * FROM usage WHERE app_id = %s ORDER BY id", self.id)

    def wait_usage(self, count: int, within: float = DRAIN_SECONDS) -> None:
        """Waits until all journals are drained and the app has exactly `count` usage rows."""

        def look() -> bool:
            if not self.gateway.drained():
                return False
            (seen,) = self.gateway.rows("SELECT count(*) AS rows FROM usage WHERE app_id = %s", self.id)
            assert seen["rows"] <= count, f"{seen['rows']} usage rows for {count} calls of app {self.id}"
            return bool(seen["rows"] == count)

        until(look, f"{count} usage rows of app {self.id}", within)

    def transfers(self) -> list[dict[str, Any]]:
        """Transfers for the app's calls and accounts, as drained so far."""
        return self.gateway.rows(
            "SELECT t.* FROM transfers t WHERE t.call_id IN (SELECT id FROM usage WHERE app_id = %s)"
            " OR t.debit_account IN (SELECT id FROM accounts WHERE app_id = %s) ORDER BY t.id",
            self.id,
            self.id,
        )


@dataclass
class Gateway:
    """The running processes and how to reach them."""

    servers: Servers
    database_url: str
    folder: Path
    price: Price
    grace: float
    environment: dict[str, str]
    listener: socket.socket
    model: str
    api_prefix: tuple[str, ...]  # words before the command of an API process, such as `taskset`
    options: tuple[str, ...]  # of each API process
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    drainer: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def journals(self) -> Path:
        return self.folder / "journal"

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return databases.rows(self.database_url, query, *values)

    # processes

    def start_api(self) -> subprocess.Popen[bytes]:
        """One more API process, on the socket that all of them share."""
        descriptor = self.listener.fileno()
        command = (*self.api_prefix, sys.executable, "-m", "api", "--fd", str(descriptor))
        words = (*command, "--grace", str(self.grace), *self.options)
        process = self._spawn(f"api-{len(self.processes)}", words, (descriptor,))
        self.processes.append(process)
        return process

    def start_drainer(self) -> None:
        self.drainer = self._spawn("drainer", (sys.executable, "-m", "ledger.drainer"))

    def _spawn(
        self, name: str, words: tuple[str, ...], descriptors: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        command = Command(name=name, argv=words, env=self.environment, pass_fds=descriptors)
        return spawn(command, self.folder / f"{name}.log")

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*self.processes, *([self.drainer] if self.drainer else [])]:
            stop(process, signal.SIGTERM, STOP_SECONDS)

    def logs(self) -> str:
        return "\n".join(f"{log.name}: {log_tail(log, 20)}" for log in sorted(self.folder.glob("*.log")))

    # what is in the journals

    def drained(self) -> bool:
        """Whether every record in the journal files has been read by the drainer."""
        known = self.rows("SELECT name, position FROM journal_files")
        positions = {row["name"]: row["position"] for row in known}
        return all(
            positions.get(path.name, 0) >= journal_end(path) for path in self.journals.glob("*.journal")
        )

    # what is registered

    def new_app(
        self,
        *,
        limits: Sequence[tuple[str, str, str, int]] = (
            ("app", "requests", "minute", PLENTY),
            ("app", "tokens", "minute", PLENTY),
            ("app", "concurrency", "none", 10_000),
        ),
        budget: Decimal | None = Decimal(1_000_000),
        hard: bool = True,
    ) -> App:
        """An app with a key, limits (subject, what, window, value) and a budget over all time."""
        key = f"sk-test-{secrets.token_urlsafe(24)}"
        with psycopg.connect(self.database_url) as connection:
            one = connection.execute
            organisation = _id(one("INSERT INTO organisations (name) VALUES (%s) RETURNING id", [key[-12:]]))
            app = _id(
                one(
                    "INSERT INTO apps (organisation_id, name) VALUES (%s, 'app') RETURNING id", [organisation]
                )
            )
            key_id = _id(
                one(
                    "INSERT INTO api_keys (app_id, name, digest, prefix) VALUES (%s, 'key', %s, %s)"
                    " RETURNING id",
                    [app, hashlib.sha256(key.encode()).digest(), key[:8]],
                )
            )
            for subject, what, window, value in limits:
                one("INSERT INTO limits VALUES (%s, %s, %s, %s, %s)", [app, subject, what, window, value])
            if budget is not None:
                one("INSERT INTO budgets VALUES (%s, 'app', 'total', %s, 'USD', %s)", [app, budget, hard])
            one("NOTIFY tollgate")
        return App(self, app, organisation, key_id, key)

    def register(
        self,
        model: str,
        engines: Sequence[str],
        *,
        engine_model: str | None = None,
        kind: str = "vllm",
        slots: int = 64,
        default_max_output: int = 256,
        endpoints: Sequence[str] = ENDPOINTS,
        price: Price | None = None,
    ) -> None:
        """A model with one version and one replica per engine address, and its price."""
        price = price or self.price
        with psycopg.connect(self.database_url) as connection:
            one = connection.execute
            model_id = _id(
                one(
                    "INSERT INTO models (name, default_max_output, endpoints) VALUES (%s, %s, %s)"
                    " RETURNING id",
                    [model, default_max_output, list(endpoints)],
                )
            )
            version = _id(
                one("INSERT INTO versions (model_id, name) VALUES (%s, 'v1') RETURNING id", [model_id])
            )
            for number, url in enumerate(engines, 1):
                one(
                    "INSERT INTO replicas (version_id, name, url, kind, engine_model, slots)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    [version, f"r{number}", url, kind, engine_model or model, slots],
                )
            one(
                "INSERT INTO prices (model, currency, prompt, cached_prompt, completion, effective_from)"
                " VALUES (%s, 'USD', %s, %s, %s, now() - interval '1 day')",
                [model, price.prompt, price.cached_prompt, price.completion],
            )
            one("NOTIFY tollgate")


def _id(cursor: "psycopg.Cursor[Any]") -> str:
    row = cursor.fetchone()
    assert row is not None
    return str(row[0])


@contextlib.contextmanager
def running_gateway(
    servers: Servers,
    database_url: str,
    folder: Path,
    *,
    engines: Sequence[str],
    processes: int = 1,
    drainer: bool = True,
    grace: float = 5.0,
    price: Price | None = None,
    model: str = vllm_wire.MODEL,
    slots: int = 64,
    kind: str = "vllm",
    endpoints: Sequence[str] = ENDPOINTS,
    env: dict[str, str] | None = None,
    api_prefix: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> Iterator[Gateway]:
    """API processes and a drainer over a migrated database, with one model on `engines`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal").mkdir(exist_ok=True)
    environment = servers.environment() | {
        "DATABASE_URL": database_url,
        "TOLLGATE_JOURNAL": str(folder / "journal"),
        "PYTHONUNBUFFERED": "1",
        **(env or {}),
    }
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        gateway = Gateway(
            servers,
            database_url,
            folder,
            price or Price(),
            grace,
            environment,
            listener,
            model,
            api_prefix,
            options,
        )
        gateway.register(gateway.model, engines, slots=slots, kind=kind, endpoints=endpoints)
        try:
            for _ in range(processes):
                gateway.start_api()
            if drainer:
                gateway.start_drainer()
            until(lambda: _answers(gateway), f"the gateway answers\n{gateway.logs()}", START_SECONDS)
            yield gateway
        finally:
            gateway.stop()


def _answers(gateway: Gateway) -> bool:
    """Whether GET /v1/models is answered; fails at once when an API process has died."""
    for process in gateway.processes:
        assert process.poll() is None, f"an API process died\n{gateway.logs()}"
    with contextlib.suppress(OSError), socket.create_connection((gateway.host, gateway.port), 1) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
        return sock.recv(16).startswith(b"HTTP/1.1 ")
    return False


def journal_end(path: Path) -> int:
    """Where the whole, sound records of a journal file end, read independently of the ledger's own reader."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    at = 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        check = int.from_bytes(data[at + 4 : at + 8], "little")
        payload = data[at + 8 : at + 8 + length]
        if not length or len(payload) < length or zlib.crc32(payload) != check:
            break
        at += 8 + length
    return at
