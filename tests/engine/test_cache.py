"""What makes two calls equal, who is answered from the cache, and that it never stands in the way."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from engine.cache import ResultCache
from engine.valkey import ValkeyClient
from tests.own_valkey import OwnValkey, ask, eventually, own_valkey

APP, VERSION, CHAT = "app-1", "version-1", "chat/completions"
BASE = orjson.loads(
    """{
    "model": "tiny", "temperature": 0, "top_p": 1, "seed": 7, "max_tokens": 16, "n": 1, "stop": ["."],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "anna", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        ]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "tool_choice": "auto", "response_format": {"type": "text"}, "logprobs": false
}"""
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The base body with one thing changed, by a path such as messages.0.content."""
    body: dict[str, Any] = orjson.loads(orjson.dumps(BASE))
    *way, last = path.split(".")
    place: Any = body
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    name: Any = int(last) if isinstance(place, list) else last
    place[name] = value
    return body


VARIANTS = [
    ("temperature", 0.1),
    ("temperature", None),
    ("top_p", 0.9),
    ("seed", 8),
    ("stop", ["!"]),
    ("n", 2),
    ("max_tokens", 17),
    ("max_completion_tokens", 16),
    ("tools", []),
    ("tools.0.function.name", "watch"),
    ("tools.0.function.strict", True),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("logprobs", True),
    ("logprobs", None),
    ("top_logprobs", 2),
    ("x_new", {"a": [1, None]}),
    ("x_new", {"a": [1]}),
    ("messages.0.content", "Be long."),
    ("messages.0.role", "developer"),
    ("messages.1.name", "bert"),
    ("messages.1.content.1.image_url.url", "data:image/png;base64,AAAB"),
    ("messages.1.content.1.image_url.detail", "high"),
    ("messages.2.tool_calls.0.function.arguments", '{"x":1}'),
    ("messages.2.tool_calls.0.id", "call_2"),
    ("messages.2.content", ""),
    ("messages.3.tool_call_id", "call_2"),
    ("model", "tiny-2"),
    ("reasoning_effort", "low"),
    ("service_tier", "flex"),
    ("chat_template_kwargs", {"thinking": False}),
]


def key(
    body: dict[str, Any], app: str = APP, version: str = VERSION, endpoint: str = CHAT, cap: int = 16
) -> bytes:
    return ResultCache.key(app, version, endpoint, body, cap)


def test_everything_that_changes_an_answer_is_part_of_its_key() -> None:
    keys = [key(BASE), *(key(changed(path, value)) for path, value in VARIANTS)]
    keys += [
        key(BASE, app="app-2"),
        key(BASE, version="version-2"),
        key(BASE, endpoint="completions"),
        key(BASE, cap=15),
        key(
            {
                "messages": list(reversed(BASE["messages"])),
                **{k: v for k, v in BASE.items() if k != "messages"},
            }
        ),
    ]
    assert len(set(keys)) == len(keys)


def test_keys_are_of_one_length_and_hold_nothing_of_the_call() -> None:
    names = {key(BASE), key(changed("messages.0.content", "x" * 100_000)), key({})}
    assert len({len(name) for name in names}) == 1
    assert all(len(name) < 100 and b"cat" not in name for name in names)


def test_order_of_fields_whitespace_and_escapes_do_not_count() -> None:
    turned = dict(reversed(BASE.items()))
    turned["messages"] = [dict(reversed(message.items())) for message in BASE["messages"]]
    spaced = orjson.loads(orjson.dumps(BASE, option=orjson.OPT_INDENT_2))
    escaped = orjson.loads(orjson.dumps(BASE).replace(b"cat", b"\\u0063at"))
    assert key(turned) == key(spaced) == key(escaped) == key(BASE)


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "anna"},
        {"safety_identifier": "x"},
        {"metadata": {"job": "1"}},
        {"store": False},
        {"prompt_cache_key": "k"},
    ],
)
def test_how_an_answer_is_sent_and_to_whom_does_not_count(more: dict[str, Any]) -> None:
    assert key({**BASE, **more}) == key(BASE)


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [
        ({"temperature": 0}, None, True),
        ({"temperature": 0.0}, None, True),
        ({"temperature": -0.0}, None, True),
        ({"temperature": False}, None, False),
        ({"temperature": "0"}, None, False),
        ({"temperature": 0.7}, None, False),
        ({"temperature": 0.7, "seed": 1}, None, True),
        ({"seed": 0}, None, True),
        ({"seed": True}, None, False),
        ({"seed": 1.5}, None, False),
        ({"seed": None}, None, False),
        ({}, None, False),
        ({}, b"on", True),
        ({}, b" ON ", True),
        ({"temperature": 1}, b"on", True),
        ({"temperature": 0}, b"off", False),
        ({"seed": 1}, b"no-store", False),
        ({"temperature": 0}, b"maybe", True),
        ({}, b"maybe", False),
    ],
)
def test_only_answers_meant_to_repeat_are_kept_unless_the_call_says_otherwise(
    body: dict[str, Any], header: bytes | None, expected: bool
) -> None:
    assert ResultCache.wanted(body, header) is expected


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path, "cache") as running:
        yield running


@pytest_asyncio.fixture
async def client(server: OwnValkey) -> AsyncIterator[ValkeyClient]:
    client = ValkeyClient(server.url, asyncio.get_running_loop(), name="cache", deadline=0.3, patience=0)
    await eventually(lambda: client.connected, "connected")
    yield client
    await client.stop()


async def look_up(cache: ResultCache, name: bytes) -> bytes | None:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    cache.get(name, found.set_result)
    return await found


@pytest.mark.asyncio
async def test_what_was_put_is_found_until_its_time_is_over(client: ValkeyClient) -> None:
    cache, name = ResultCache(client, max_bytes=1000, ttl_s=100), key(BASE)
    assert await look_up(cache, name) is None
    cache.put(name, b'{"answer": "\xc3\xa9\r\n"}')
    assert await look_up(cache, name) == b'{"answer": "\xc3\xa9\r\n"}'
    assert isinstance(left := await ask(client, "TTL", name), int)
    assert 98 <= left <= 100
    cache.put(key({}), b"x" * 1001)
    assert await look_up(cache, key({})) is None


@pytest.mark.asyncio
async def test_an_unreachable_or_frozen_cache_is_a_miss_and_soon(
    client: ValkeyClient, server: OwnValkey
) -> None:
    cache, name = ResultCache(client), key(BASE)
    cache.put(name, b"{}")
    assert await look_up(cache, name) == b"{}"
    with server.frozen():
        began = time.monotonic()
        assert await look_up(cache, name) is None
        assert time.monotonic() - began < 1.5
        began = time.monotonic()
        for _ in range(100):
            cache.put(name, b"{}")
            assert await look_up(cache, name) is None
        assert time.monotonic() - began < 1.0
    await eventually(lambda: client.connected, "back")
    assert await look_up(cache, name) == b"{}"
    server.kill()
    await eventually(lambda: not client.connected, "gone")
    assert await look_up(cache, name) is None
    server.start()
    await eventually(lambda: client.connected, "back")
    assert await look_up(cache, name) is None


@pytest.mark.asyncio
async def test_a_value_of_another_kind_under_an_answers_name_is_a_miss(client: ValkeyClient) -> None:
    cache, name = ResultCache(client), key(BASE)
    await ask(client, "RPUSH", name, "x")
    assert await look_up(cache, name) is None


@pytest.mark.asyncio
async def test_a_cache_that_takes_nothing_says_so_once(
    client: ValkeyClient, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ResultCache(client)
    await ask(client, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
    for number in range(5):
        cache.put(key({"n": number}), b"{}")
    await ask(client, "PING")
    await ask(client, "CONFIG", "SET", "maxmemory", "0")
    cache.put(key({}), b"{}")
    await ask(client, "PING")
    said = [record.getMessage() for record in caplog.records if record.name == "engine.cache"]
    assert len(said) == 2
    assert "keeps nothing" in said[0]
    assert "again" in said[1]
