"""Whether servers and engines that were named by address can be used: asked before anything is started."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

from engine.errors import InvalidSetting
from engine.registry import split_engine_url
from tollgate.errors import Unreachable

ANSWER_SECONDS = 5.0
OLDEST_POSTGRES = 15  # UNIQUE NULLS NOT DISTINCT
VALKEY_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")


def check_database(url: str) -> None:
    """Connect once; Unreachable with one sentence when that fails."""
    if urlsplit(url).scheme not in {"postgresql", "postgres"}:
        raise Unreachable(
            "DATABASE_URL is no PostgreSQL address; it must look like postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )
    try:
        with psycopg.connect(url, connect_timeout=int(ANSWER_SECONDS)) as connection:
            version = connection.info.server_version // 10_000
    except psycopg.Error as error:
        raise Unreachable(
            f"PostgreSQL at {place(url)} (DATABASE_URL) cannot be used: {_reason(error)}; "
            "start that server or correct the address."
        ) from None
    if version < OLDEST_POSTGRES:
        raise Unreachable(
            f"PostgreSQL at {place(url)} (DATABASE_URL) is version {version}; Tollgate needs "
            f"{OLDEST_POSTGRES} or newer."
        )


def check_valkey(variable: str, url: str) -> None:
    """Ask once for PONG; Unreachable with one sentence when that fails."""
    if urlsplit(url).scheme not in VALKEY_SCHEMES:
        raise Unreachable(
            f"{variable} is no Valkey address; it must look like redis://:PASSWORD@HOST:PORT/0."
        )
    try:
        with contextlib.closing(
            redis.Redis.from_url(
                url, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS, retry=None
            )
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise Unreachable(
            f"Valkey at {place(url)} ({variable}) cannot be used: {_reason(error)}; "
            "start that server or correct the address."
        ) from None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself. context_length in tokens, None where it does not say."""

    base: str
    models: tuple[str, ...]
    context_length: int | None


def ask_engine(url: str) -> EngineFacts:
    """List an engine's models; Unreachable with one sentence when it gives no list."""
    base = engine_base(url)
    status, answer = http_json("GET", f"{base}/v1/models")
    entries = answer.get("data") if isinstance(answer, dict) else None
    if status is None:
        raise Unreachable(
            f"The engine at {base} does not answer ({answer}); start it or correct --engine-url."
        )
    if status != 200 or not isinstance(entries, list):
        raise Unreachable(
            f"The engine at {base} answers {base}/v1/models with status {status}, not with a list of models; "
            "give --engine-url the address of an OpenAI-compatible engine."
        )
    listed = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    lengths = [entry["max_model_len"] for entry in listed if isinstance(entry.get("max_model_len"), int)]
    return EngineFacts(base, tuple(entry["id"] for entry in listed), min(lengths, default=None))


def engine_base(url: str) -> str:
    """An engine's address without a trailing slash and without /v1; Unreachable when it is none."""
    try:
        host, port, path = split_engine_url(url if "//" in url else f"http://{url}")
    except InvalidSetting as error:
        raise Unreachable(f"--engine-url {place(url)}: {error}") from None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def http_json(
    method: str,
    url: str,
    *,
    body: object = None,
    key: str | None = None,
    seconds: float = ANSWER_SECONDS,
) -> tuple[int | None, Any]:
    """One call: (status, parsed JSON or the text), or (None, the reason) when nothing answered."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 (http only)
    # Never by a proxy of the environment: these are the operator's own addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with opener.open(request, timeout=seconds) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _parsed(error.read())
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        return None, _reason(getattr(error, "reason", None) or error)


def place(url: str) -> str:
    """Host and port of an address, without its password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or '?'}:{parts.port}" if parts.port else parts.hostname or "?"
    except ValueError:
        return "?"


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body[:300].decode(errors="replace")


def _reason(error: object) -> str:
    text = " ".join(str(error).split()).rstrip(".;")
    return text[-240:] or type(error).__name__
