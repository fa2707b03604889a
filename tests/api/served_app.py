"""The FastAPI application on a port, over a real snapshot, in a thread of this process."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
import httpx2
import uvicorn
import uvloop

from api.access import service
from api.app import create_app
from api.snapshot import Snapshot
from tests.waiting import until

T = TypeVar("T")

LANE_PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"]


@dataclass
class ServedApp:
    """What runs, and two ways to it: over HTTP with an admin key, and into its event loop."""

    url: str
    database_url: str
    admin_key: str
    snapshot: Snapshot
    client: httpx2.Client
    loop: asyncio.AbstractEventLoop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine where the application runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@contextlib.contextmanager
def served_app(
    database_url: str, health: Callable[[], dict[str, Any]] = dict, wait_seconds: float = 10.0
) -> Iterator[ServedApp]:
    """Serves until the block ends. wait_seconds: how long the start may wait for the first load."""
    snapshot = Snapshot(database_url)
    app = create_app(snapshot=snapshot, database_url=database_url, health=health)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    loop = uvloop.new_event_loop()  # as in production; it also sends small writes at once
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        async def serve() -> None:
            await snapshot.start(wait_seconds)
            await server.serve([listener])
            await snapshot.stop()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            until(lambda: server.started, "the application serves", 20)
            with httpx2.Client(base_url=url, timeout=20) as client:
                yield ServedApp(url, database_url, "", snapshot, client, loop)
        finally:
            server.should_exit = True
            thread.join(20)
            loop.close()


@contextlib.contextmanager
def served_app_with_admin(database_url: str, **options: Any) -> Iterator[ServedApp]:
    """The same with an admin key, which its client sends."""
    key = in_database(
        database_url, lambda connection: service.create_key(connection, app=None, name="admin")
    ).key
    with served_app(database_url, **options) as served:
        served.admin_key = key
        served.client.headers["authorization"] = f"Bearer {key}"
        yield served


def in_database(database_url: str, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
    """Runs work on a connection of its own."""

    async def run() -> T:
        connection = await asyncpg.connect(database_url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error
