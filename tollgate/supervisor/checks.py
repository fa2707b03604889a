"""Whether servers that were named by address can be used: asked before anything is started."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from migrations.check import malformed
from tollgate.errors import Unreachable

ANSWER_SECONDS = 5.0
OLDEST_POSTGRES = 15  # UNIQUE NULLS NOT DISTINCT
# How Valkey words it when an address has no password, or a wrong one.
ASKS_FOR_PASSWORD = (
    "HELLO must be called",
    "NOAUTH",
    "Authentication required",
    "WRONGPASS",
    "invalid username",
)
VALKEY_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")


def check_database(url: str) -> None:
    """Connect once; Unreachable with one sentence when that fails."""
    if _scheme(url) not in {"postgresql", "postgres"}:
        raise Unreachable(
            "DATABASE_URL is no PostgreSQL address; it must look like postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )
    try:
        with psycopg.connect(url, connect_timeout=int(ANSWER_SECONDS)) as connection:
            version = connection.info.server_version // 10_000
    except (psycopg.Error, ValueError) as error:
        if malformed(url, error):
            raise _malformed("DATABASE_URL", "postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
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
    if _scheme(url) not in VALKEY_SCHEMES:
        raise Unreachable(
            f"{variable} is no Valkey address; it must look like redis://:PASSWORD@HOST:PORT/0."
        )
    try:
        with contextlib.closing(
            redis.Redis.from_url(
                url,
                socket_connect_timeout=ANSWER_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        if malformed(url, error):
            raise _malformed(variable, "redis://:PASSWORD@HOST:PORT/0") from None
        if any(words in str(error) for words in ASKS_FOR_PASSWORD):
            raise Unreachable(
                f"Valkey at {place(url)} wants another password or user name than {variable} has: write it "
                "like redis://:PASSWORD@HOST:PORT/0."
            ) from None
        raise Unreachable(
            f"Valkey at {place(url)} ({variable}) cannot be used: {_reason(error)}; "
            "start that server or correct the address."
        ) from None


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


def _malformed(variable: str, form: str) -> Unreachable:
    """Nothing of the address is quoted: what is taken for a host or a port may be of the password."""
    return Unreachable(
        f"{variable} is malformed: it must look like {form}; percent-encode special characters of the "
        "password."
    )


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body[:300].decode(errors="replace")


def _reason(error: object) -> str:
    text = " ".join(str(error).split()).rstrip(".;")
    return text[-240:] or type(error).__name__
