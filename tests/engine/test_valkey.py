"""The Valkey client against a real server that is killed, frozen, and absent at the start."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.errors import ValkeyError, ValkeyNotSent, ValkeyRefused, ValkeyUnavailable
from engine.resp import Reply
from engine.valkey import ValkeyClient
from tests.own_valkey import OwnValkey, ask, eventually, own_valkey

pytestmark = pytest.mark.asyncio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnValkey]:
    with own_valkey(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(server: OwnValkey) -> AsyncIterator[ValkeyClient]:
    client = ValkeyClient(server.url, asyncio.get_running_loop(), name="limits")
    yield client
    await client.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_replies_of_every_kind_come_back_in_order(client: ValkeyClient) -> None:
    asked = [
        ask(client, *command)
        for command in (
            ("SET", "name", "wért"),
            ("GET", "name"),
            ("GET", "nothing"),
            ("INCRBY", "n", "9007199254740993"),
            ("RPUSH", "list", "a", "", "c"),
            ("LRANGE", "list", "0", "-1"),
            ("EVAL", "return {1, {'two', false}, redis.error_reply('ERR three')}", "0"),
            ("NOSUCH",),
            ("PING",),
        )
    ]
    *replies, refused, pong = await asyncio.gather(*asked)
    assert replies[:6] == [b"OK", "wért".encode(), None, 9007199254740993, 3, [b"a", b"", b"c"]]
    nested = replies[6]
    assert isinstance(nested, list)
    assert nested[:2] == [1, [b"two", None]]
    assert isinstance(nested[2], ValkeyRefused)
    assert isinstance(refused, ValkeyRefused)
    assert refused.code == "ERR"
    assert pong == b"PONG"


async def test_replies_of_megabytes_are_put_together(client: ValkeyClient) -> None:
    value = bytes(range(256)) * 20_000
    assert await ask(client, "SET", "big", value) == b"OK"
    small, big, again = await asyncio.gather(
        ask(client, "PING"), ask(client, "GET", "big"), ask(client, "PING")
    )
    assert (small, big == value, again) == (b"PONG", True, b"PONG")


async def test_calls_of_one_turn_leave_in_one_write_and_none_answers_before_it_is_made(
    client: ValkeyClient,
) -> None:
    await ask(client, "PING")
    answers: list[Reply | ValkeyError] = []
    for _ in range(500):
        client.call((b"INCR", b"n"), answers.append)
    assert answers == []
    await eventually(lambda: len(answers) == 500, "all answered")
    assert answers == list(range(1, 501))


async def test_a_killed_server_fails_what_is_in_flight_and_all_recovers_by_itself(
    client: ValkeyClient, server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(client, "SET", "kept", "yes")
    caplog.clear()
    sleeping = asyncio.ensure_future(ask(client, "BLPOP", "never", "0"))
    await asyncio.sleep(0.05)
    server.kill()
    assert type(await sleeping) is ValkeyUnavailable
    waiting = asyncio.ensure_future(ask(client, "GET", "kept"))
    await asyncio.sleep(0)
    server.start()
    assert await waiting == b"yes"
    states = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(states) == 2
    assert "is away" in states[0]
    assert "is back" in states[1]
    assert "sesame" not in caplog.text


async def test_a_frozen_server_fails_calls_within_their_deadline_and_then_at_once(
    client: ValkeyClient, server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(client, "PING")
    caplog.clear()
    with server.frozen():
        began = time.monotonic()
        replies = await asyncio.gather(*(ask(client, "PING") for _ in range(50)))
        assert {type(reply) for reply in replies} == {ValkeyUnavailable}
        assert time.monotonic() - began < 2.0
        assert type(await ask(client, "PING")) is ValkeyNotSent  # waited with patience
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert type(await ask(client, "PING")) is ValkeyNotSent
        assert time.monotonic() - began < 0.5
    await eventually(lambda: client.connected, "back after the thaw", 3)
    assert await ask(client, "PING") == b"PONG"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


async def test_what_a_frozen_server_held_back_never_runs_after_the_client_is_back(
    client: ValkeyClient, server: OwnValkey
) -> None:
    """A thawed server finds old commands in its buffers: none may overtake what was sent since."""
    slow = "for i = 1, 1000000 do end return redis.call('INCR', 'late')"
    await ask(client, "PING")
    with server.frozen():
        # Longer than what the server reads at a time, so that it turns to other connections in between.
        late = [ask(client, "EVAL", slow, "0", "x" * 20_000) for _ in range(60)]
        assert {type(reply) for reply in await asyncio.gather(*late)} == {ValkeyUnavailable}
    await eventually(lambda: client.connected, "back after the thaw", 3)
    first = await ask(client, "GET", "late")
    began = time.monotonic()
    while time.monotonic() < began + 0.25:
        assert await ask(client, "GET", "late") == first


async def test_a_server_that_is_absent_at_the_start_is_found_when_it_comes(tmp_path: Path) -> None:
    server = OwnValkey(tmp_path)
    client = ValkeyClient(server.url, asyncio.get_running_loop(), name="limits")
    try:
        assert type(await ask(client, "PING")) is ValkeyNotSent
        server.start()
        await eventually(lambda: client.connected, "connected", 3)
        assert await ask(client, "PING") == b"PONG"
    finally:
        await client.stop()
        server.kill()


async def test_a_wrong_password_is_said_and_retried(
    server: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    client = ValkeyClient(server.url.replace("sesame", "guess"), asyncio.get_running_loop(), patience=0.2)
    assert type(await ask(client, "PING")) is ValkeyNotSent
    await client.stop()
    assert "WRONGPASS" in caplog.text
    assert "guess" not in caplog.text


async def test_calls_that_wait_are_bounded(server: OwnValkey) -> None:
    client = ValkeyClient(server.url, asyncio.get_running_loop(), max_pending=10)
    await ask(client, "PING")
    with server.frozen():
        replies = await asyncio.gather(*(ask(client, "PING") for _ in range(15)))
    await client.stop()
    assert [type(reply) for reply in replies] == [ValkeyUnavailable] * 10 + [ValkeyNotSent] * 5


async def test_a_script_that_the_server_forgot_is_loaded_again(
    client: ValkeyClient, server: OwnValkey
) -> None:
    sha = client.script(b"return 'here'")
    assert await ask(client, "EVALSHA", sha, "0") == b"here"
    await ask(client, "SCRIPT", "FLUSH")
    assert isinstance(await ask(client, "EVALSHA", sha, "0"), ValkeyRefused)
    again: asyncio.Future[Reply | ValkeyError] = asyncio.get_running_loop().create_future()
    client.resend(b"*3\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n0\r\n" % sha, again.set_result)
    assert await again == b"here"
    server.kill()
    server.forget()
    await eventually(lambda: not client.connected, "the loss is noticed")
    server.start()
    assert await ask(client, "EVALSHA", sha, "0") == b"here"


async def test_a_callback_that_raises_takes_nothing_from_the_others(
    client: ValkeyClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(reply: Reply | ValkeyError) -> None:
        raise RuntimeError("marker")

    client.call((b"PING",), broken)
    assert await ask(client, "PING") == b"PONG"
    assert "marker" in caplog.text


async def test_what_is_no_valkey_is_given_up_without_a_fault() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(web, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = ValkeyClient(f"redis://:x@127.0.0.1:{port}/0", asyncio.get_running_loop(), patience=0.2)
    assert type(await ask(client, "PING")) is ValkeyNotSent
    await client.stop()
    listening.close()
    await listening.wait_closed()
