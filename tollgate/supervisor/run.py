"""One `tollgate up`, from the first check to the last process: start all, say so, wait, stop all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncpg
import psycopg

from api.errors import GatewayError
from engine.errors import EngineError
from ledger.errors import LedgerError
from migrations.errors import MigrationError
from migrations.run import upgrade
from tollgate.embedded.passwords import write_private
from tollgate.errors import PortTaken, ServerFailed, TollgateError
from tollgate.home import Ready
from tollgate.supervisor import bootstrap, engines, leftovers, lock, parts, summary
from tollgate.supervisor.checks import http_json
from tollgate.supervisor.display import PlainDisplay
from tollgate.supervisor.engines import Engines
from tollgate.supervisor.options import Options
from tollgate.supervisor.part import Part
from tollgate.supervisor.supervisor import Supervisor
from tollgate.supervisor.threads import in_thread

LISTEN_BACKLOG = 4096
WANTED_FILES = 65_536
ENOUGH_FILES = 4_096
SMALLEST_DISK_BYTES = 500 << 20
PROBE_SECONDS = 90.0  # for the first token; a large engine may still be warming up
API_SECONDS = 60.0


def up(options: Options, home: Path, display: PlainDisplay) -> int:
    """Run until a signal says stop; returns the exit code. Raises TollgateError when it cannot start."""
    with lock.holding(home):
        display.log_to(_private_folder(home / "logs") / "up.log")
        _require_disk(home)
        _raise_file_limit(display)
        (home / "ready.json").unlink(missing_ok=True)
        ended = leftovers.end_leftovers(home)
        if ended:
            display.say(f"Ended what the last run had left: {', '.join(ended)}.")
        with _listening(options) as listener:
            return asyncio.run(_Run(options, home, display, listener).run())


class _Run:
    """One run: what is known so far, and what it has started."""

    def __init__(self, options: Options, home: Path, display: PlainDisplay, listener: socket.socket) -> None:
        self._options = options
        self._home = home
        self._display = display
        self._listener = listener
        self._ready: Ready | None = None
        self._supervisor = Supervisor(
            home, say=display.say, changed=self._write_ready, failed=self._on_failure
        )
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._failure: ServerFailed | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup a closed terminal is no reason to stop.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_stop_signal, number)
        self._supervisor.watch()
        self._starting = loop.create_task(self._start())
        try:
            await self._starting
            await self._stop.wait()
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            if not self._stop.is_set():
                raise
            return 128 + signal.SIGINT
        except BaseExceptionGroup as group:
            raise _first_error(group) from group
        except (MigrationError, EngineError, LedgerError, GatewayError) as error:
            raise TollgateError(str(error)) from error
        except (psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            reason = " ".join(str(error).split())
            raise ServerFailed(
                f"The database refused the start ({reason}); mend that and start again."
            ) from error
        finally:
            try:
                self._display.close()
            finally:
                await self._end()
        return 0

    def _on_failure(self, failure: ServerFailed) -> None:
        if self._starting is not None and not self._starting.done():
            self._failure = self._failure or failure
            self._starting.cancel()

    def _on_stop_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._display.say("Killing everything now.")
            self._supervisor.kill()
            self._remove_ready()
            os._exit(128 + number)
        self._stop.set()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()

    async def _start(self) -> None:
        began = time.monotonic()
        options, display = self._options, self._display
        with display.step("checks"):
            chosen = await engines.choose(options, display.progress)
            engines.require_engine_ports(options, chosen)
            servers = await in_thread(parts.server_parts, options, self._home)
        urls = servers.urls
        environment = {
            **urls,
            "TOLLGATE_HOME": str(self._home),
            "TOLLGATE_JOURNAL": str(_private_folder(self._home / "journal")),
        }
        # Engines load while the database is made ready.
        async with asyncio.TaskGroup() as group:
            for part in (*servers.parts, *chosen.parts):
                group.create_task(self._start_part(part))
        if servers.postgres is not None:
            await in_thread(servers.postgres.ensure_database)
        with display.step("migrations"):
            await in_thread(upgrade, urls["DATABASE_URL"], say=display.say)
        with display.step("model, price, keys"):
            keys, price = await self._bootstrap(urls["DATABASE_URL"], chosen)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._start_part(parts.drainer_part(environment)))
            for part in parts.api_parts(options, environment, self._listener.fileno()):
                group.create_task(self._start_part(part))
        api = f"http://{_shown_host(options.host)}:{options.port}"
        with display.step("the first token through the gateway"):
            await in_thread(_await_first_token, api, keys.probe, chosen)
        self._supervisor.all_ready()
        self._ready = Ready(
            api=api,
            app_key=keys.app,
            admin_key=keys.admin,
            database_url=urls["DATABASE_URL"],
            broker_url=urls["BROKER_URL"],
            limits_url=urls["LIMITS_URL"],
            cache_url=urls["CACHE_URL"],
            engines=list(chosen.pool.engine_urls),
            pids={},
        )
        self._write_ready()
        display.summary(
            summary.text(self._ready, options, chosen, price, self._home, time.monotonic() - began)
        )
        display.write_log(f"ready after {time.monotonic() - began:.1f} s")

    async def _start_part(self, part: Part) -> None:
        with self._display.step(part.name):
            await self._supervisor.start(part)

    async def _bootstrap(self, database_url: str, chosen: Engines) -> tuple[bootstrap.Keys, str]:
        connection = await asyncpg.connect(database_url, timeout=10, command_timeout=30)
        try:
            for line in await bootstrap.register(connection, chosen.pool, ours=bool(chosen.parts)):
                self._display.say(line)
            price = await bootstrap.ensure_price(connection, chosen.pool.model, self._options.price)
            owners = await bootstrap.ensure_owners(connection)
            for line in owners.said:
                self._display.say(line)
            return await bootstrap.ensure_keys(connection, self._home, owners), price
        finally:
            await connection.close()

    async def _end(self) -> None:
        began = time.monotonic()
        running = len(self._supervisor.pids())
        try:
            self._remove_ready()
            if running:
                self._display.say("Stopping (once more Ctrl-C kills).")
        finally:
            await self._supervisor.stop()
        if running:
            self._display.say(f"Stopped {running} processes after {time.monotonic() - began:.1f} s.")

    def _write_ready(self) -> None:
        if self._ready is None:
            return
        self._ready["pids"] = self._supervisor.pids()
        write_private(self._home / "ready.json", json.dumps(self._ready, indent=2) + "\n")

    def _remove_ready(self) -> None:
        self._ready = None
        (self._home / "ready.json").unlink(missing_ok=True)


def _await_first_token(api: str, key: str, chosen: Engines) -> None:
    """A real answer for each replica, through the whole gateway, booked to the house."""
    deadline = time.monotonic() + API_SECONDS
    while http_json("GET", f"{api}/v1/models", key=key)[0] != 200:
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"The API at {api} did not answer within {API_SECONDS:g} s; see logs/api-1.log."
            )
        time.sleep(0.05)
    model = chosen.pool.model
    endpoint, body = _smallest_call(model, chosen.pool.checked_endpoints())
    deadline = time.monotonic() + PROBE_SECONDS
    while True:
        status, answer = http_json("POST", f"{api}/v1/{endpoint}", body=body, key=key, seconds=PROBE_SECONDS)
        if status == 200:
            return
        if time.monotonic() > deadline or status not in {None, 429, 502, 503, 504}:
            reason = json.dumps(answer)[:300]
            raise ServerFailed(f"The model '{model}' gave no first token: status {status}, {reason}.")
        time.sleep(0.2)


def _smallest_call(model: str, endpoints: tuple[str, ...]) -> tuple[str, Mapping[str, object]]:
    message = [{"role": "user", "content": "Hi"}]
    bodies: dict[str, Mapping[str, object]] = {
        "chat/completions": {"model": model, "messages": message, "max_tokens": 1},
        "completions": {"model": model, "prompt": "Hi", "max_tokens": 1},
        "responses": {"model": model, "input": "Hi", "max_output_tokens": 16},
        "messages": {"model": model, "messages": message, "max_tokens": 1},
        "embeddings": {"model": model, "input": "Hi"},
    }
    endpoint = next(name for name in bodies if name in endpoints)
    return endpoint, bodies[endpoint]


@contextlib.contextmanager
def _listening(options: Options) -> Iterator[socket.socket]:
    """The API's socket: bound first, so that a taken port is said at once, and kept open over restarts."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
            listener.listen(LISTEN_BACKLOG)
        except PermissionError:
            raise TollgateError(
                f"Port {options.port} needs root's rights; choose one above 1023 with --port."
            ) from None
        except socket.gaierror:
            raise TollgateError(f"--host {options.host} is no address of this machine.") from None
        except OSError as error:
            if error.strerror and "assign" in error.strerror:
                raise TollgateError(f"--host {options.host} is no address of this machine.") from None
            raise PortTaken(options.port, "the API", "--port") from None
        yield listener


def _raise_file_limit(display: PlainDisplay) -> None:
    """Every open stream takes two descriptors; the children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft < ENOUGH_FILES:
        display.say(
            f"Only {soft} files may be open at once: at most about {soft // 3} streams; raise `ulimit -Hn`."
        )


def _require_disk(home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < SMALLEST_DISK_BYTES:
        raise TollgateError(
            f"Only {free >> 20} MB are free for {home} and Tollgate needs {SMALLEST_DISK_BYTES >> 20} MB; "
            "make room or set TOLLGATE_HOME to a folder on another disk."
        )


def _private_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _shown_host(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 (only shown)
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a task group that caused the others."""
    inner = group.exceptions[0]
    return _first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner
