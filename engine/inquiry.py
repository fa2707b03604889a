"""One question to an engine and its whole answer, off the path of calls: probes, readiness, token counts.

Each question has a connection of its own, so that nothing here shares state with the calls in flight.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import httptools
import orjson

from engine.errors import EngineUnreachable
from engine.registry import split_engine_url

READ_BYTES = 65536
MOST_BYTES = 16 << 20  # of an answer; more is no engine's answer to a question of ours


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `json` is None when the body is not JSON."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class _Collector:
    """What httptools calls back with."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def ask(url: str, method: str, path: str, body: Any = None, *, within: float = 5.0) -> Reply:
    """Send `body` as JSON (None: no body) to `path`, which starts with '/', of the engine at `url`.

    `within` bounds the whole exchange, in seconds. Raises EngineUnreachable when no whole answer came, in a
    sentence that names host and port only: an address may carry more than is to be repeated.
    """
    host, port, base_path = split_engine_url(url)
    content = b"" if body is None else orjson.dumps(body)
    head = (
        f"{method} {base_path}{path} HTTP/1.1\r\nHost: {_host_field(host, port)}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(within):
            return await _exchange(host, port, head.encode("ascii") + content)
    except TimeoutError as error:
        raise EngineUnreachable(f"The engine at {host}:{port} did not answer within {within:g} s.") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        raise EngineUnreachable(
            f"Nothing answers at {host}:{port} ({reason}): start the engine or correct its address."
        ) from error
    except httptools.HttpParserError as error:
        raise EngineUnreachable(f"What answers at {host}:{port} does not speak HTTP.") from error


async def _exchange(host: str, port: int, request: bytes) -> Reply:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        collector = _Collector()
        parser = httptools.HttpResponseParser(collector)
        while not collector.complete:
            data = await reader.read(READ_BYTES)
            if not data:
                break
            parser.feed_data(data)
            if len(collector.body) > MOST_BYTES:
                raise ConnectionError("too long an answer")
        status = parser.get_status_code()
        if status == 0 or not (collector.complete or collector.body):
            raise ConnectionError("closed without an answer")
        return Reply(status, bytes(collector.body))
    finally:
        writer.close()


def _host_field(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
