"""Connections of callers: turns of pipelined requests, lane and FastAPI mixed, HTTP's less usual ways."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caller import BrokenOff, Caller, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Pause, Repeat, ScriptedEngine
from tests.gateway import App, Gateway, running_gateway
from tests.waiting import until
from tollgate.servers import Servers

PROMPT = [{"role": "user", "content": "hi"}]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": PROMPT, **more}


def get(path: str, key: str = "", version: str = "1.1") -> bytes:
    return f"GET {path} HTTP/{version}\r\nHost: g\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def test_one_connection_carries_many_calls(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    with Caller(gateway) as caller:
        for number in range(50):
            reply = caller.ask(app, ask(stream=number % 2 == 0))
            assert reply.status == 200
            assert "connection" not in reply.headers
    assert len(app.usage_rows(50)) == 50
    # The engine's connections are kept as well.
    assert len({received.connection for received in engine.requests()}) == 1


def test_pipelined_calls_are_answered_in_order(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    engine.always(lambda received: [wire.reply(wire.chat_answer(f"answer {received.json()['seed']}"))])
    calls = [request(app, ask(seed=number)) for number in range(20)]
    with Caller(gateway) as caller:
        caller.send(b"".join(calls))
        contents = [caller.read_reply().json()["choices"][0]["message"]["content"] for _ in calls]
    assert contents == [f"answer {number}" for number in range(20)]
    assert len(app.usage_rows(20)) == 20


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_pipelined_requests_of_the_lane_and_of_fastapi_keep_their_order(
    gateway: Gateway, app: App, engine: ScriptedEngine, piece: int
) -> None:
    head, *events = wire.stream_reply(wire.chat_events(["a"]))
    engine.script(head, Pause("go on"), *events)
    sent = b"".join(
        [
            request(app, ask(stream=True)),
            get("/v1/models", app.key),
            request(app, ask()),
            get("/nowhere"),
            get("/v1/models", app.key),
            request(app, b"{"),
            request(app, ask(), chunked=(3, 10)),
        ]
    )
    with Caller(gateway) as caller:
        for at in range(0, len(sent), piece):
            caller.send(sent[at : at + piece])
        engine.last().wait_reached("go on")
        engine.go("go on")
        replies = [caller.read_reply() for _ in range(7)]
    assert [reply.status for reply in replies] == [200, 200, 200, 404, 200, 400, 200]
    assert replies[0].body.endswith(wire.DONE)
    assert [reply.json()["object"] for reply in (replies[1], replies[2])] == ["list", "chat.completion"]
    assert len(app.usage_rows(3)) == 3


def test_a_caller_that_leaves_with_calls_in_the_pipeline_starts_none_of_them(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    more = Repeat(wire.chunk(wire.text("b")), 10_000, between=0.005)
    engine.script(wire.stream_head() + wire.chunk(wire.role() + wire.text("a")), more)
    with Caller(gateway) as caller:
        caller.send(request(app, ask(stream=True)) + request(app, ask()) + request(app, ask()))
        caller.read_head()
        caller.read_until(wire.text("a"))
    engine.last().wait_closed()
    (row,) = app.usage_rows(1)
    assert row["outcome"] == "caller_left"
    assert len(engine.requests()) == 1


def test_connection_close_is_honoured(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    for stream in (True, False):
        with Caller(gateway) as caller:
            reply = caller.ask(app, ask(stream=stream), headers={"Connection": "close"})
            assert reply.status == 200
            caller.wait_closed()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_caller_of_http_1_0_gets_its_answer_without_chunks(
    gateway: Gateway, app: App, engine: ScriptedEngine, stream: bool
) -> None:
    with Caller(gateway) as caller:
        reply = caller.ask(app, ask(stream=stream), version="1.0")
        assert "transfer-encoding" not in reply.headers
        caller.wait_closed()
    if stream:
        assert reply.body.endswith(wire.DONE)
    else:
        assert reply.json()["choices"]
    (row,) = app.usage_rows(1)
    assert row["outcome"] == "completed"


def test_a_chunked_body_reaches_the_engine_in_one_piece(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    sent = b'{"model":"scripted","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'
    with Caller(gateway) as caller:
        for sizes in ((), (1,) * len(sent), (3, 500)):
            assert caller.ask(app, sent, chunked=sizes).status == 200
        with_trailer = request(app, sent, chunked=())[:-2] + b"x-checksum: 7\r\n\r\n"
        caller.send(with_trailer)
        assert caller.read_reply().status == 200
    assert [(item.body, item.chunked) for item in engine.requests()] == [(sent, False)] * 4


def test_expect_100_continue_is_answered_before_the_body(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    whole = request(app, ask(), headers={"Expect": "100-continue"})
    head, body = whole.split(b"\r\n\r\n", 1)
    with Caller(gateway) as caller:
        caller.send(head + b"\r\n\r\n")
        assert caller.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(body)
        assert caller.read_reply().status == 200
        # The connection is good for more, and not every body is announced.
        assert caller.ask(app, ask()).status == 200
    assert engine.last().header("expect") is None


def test_an_announced_body_that_is_too_long_is_refused_before_it_is_sent(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    head = request(app, b"", headers={"Expect": "100-continue"})
    with Caller(gateway) as caller:
        caller.send(head.replace(b"Content-Length: 0", b"Content-Length: 99000000"))
        assert caller.read_reply().status == 413
        caller.wait_closed()


def test_a_body_in_slow_pieces_is_served(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    whole = request(app, ask())
    with Caller(gateway) as caller:
        for at in range(len(whole)):
            caller.send(whole[at : at + 1])
            time.sleep(0.0005)
        assert caller.read_reply().status == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions?api-version=1", "/v1/chat%2Fcompletions", "http://gateway/v1/chat/completions"],
)
def test_other_spellings_of_the_path_are_the_same_path(
    gateway: Gateway, app: App, engine: ScriptedEngine, path: str
) -> None:
    with Caller(gateway) as caller:
        assert caller.ask(app, ask(), path=path).status == 200
    assert engine.last().target == "/v1/chat/completions"
    assert len(app.usage_rows(1)) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_on_the_lanes_path_are_refused(
    gateway: Gateway, app: App, engine: ScriptedEngine, method: str
) -> None:
    with Caller(gateway) as caller:
        caller.send(
            f"{method} /v1/chat/completions HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n".encode()
        )
        status, _ = caller.read_head()
    assert status == 405
    assert engine.requests() == []


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
NOT_HTTP = {
    "no request line": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": POST + b"Content-Length: 2\r\n" + CHUNKED + b"0\r\n\r\n",
    "a length below zero": POST + b"Content-Length: -2\r\n\r\n{}",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "a chunk size that is none": POST + CHUNKED + b"zz\r\n{}\r\n",
    "a chunk longer than it said": POST + CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a bare line feed in a header": POST + b"x: y\nz: y\r\nContent-Length: 0\r\n\r\n",
    "a folded header": POST + b"x: y\r\n z\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("what", NOT_HTTP)
def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_ends(
    gateway: Gateway, engine: ScriptedEngine, what: str
) -> None:
    with Caller(gateway) as caller:
        caller.send(NOT_HTTP[what] + get("/v1/models"))
        reply = caller.read_reply()
        assert 400 <= reply.status < 500
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert caller.read_to_end() == b"", "what came after was taken for a request"
    assert engine.requests() == []


def test_a_broken_request_behind_a_running_call_does_not_harm_that_call(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    head, *events = wire.stream_reply(wire.chat_events(["a"]))
    engine.script(head, Pause("after"), *events)
    with Caller(gateway) as caller:
        caller.send(request(app, ask(stream=True)))
        engine.last().wait_reached("after")
        caller.send(b"\x00\x01 this is no HTTP \r\n\r\n")
        engine.go("after")
        assert caller.read_reply().body.endswith(wire.DONE)
        with pytest.raises(BrokenOff):
            caller.read_reply()
    (row,) = app.usage_rows(1)
    assert row["outcome"] == "completed"


def test_headers_between_caller_and_gateway_stay_there(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    headers = {
        "Connection": "x-hop, keep-alive",
        "X-Hop": "1",
        "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "Proxy-Authorization": "Basic c2VjcmV0",
        "Cookie": "session=secret",
        "X-Api-Key": "secret",
        "Accept-Encoding": "gzip",
    }
    with Caller(gateway) as caller:
        assert caller.ask(app, ask(), headers=headers).status == 200
    names = {name for name, _ in engine.last().headers}
    assert names <= {"host", "content-type", "content-length", "accept", "x-request-id"}
    assert app.key.encode() not in engine.last().head


def test_the_engines_own_headers_do_not_pass(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    reply = wire.reply(
        wire.chat_answer("a"), set_cookie="engine=1", x_internal="10.0.0.1:8000", server="uvicorn"
    )
    engine.script(reply)
    with Caller(gateway) as caller:
        headers = caller.ask(app, ask()).headers
    assert not {"set-cookie", "x-internal", "server"} & set(headers)
    assert headers["x-request-id"]


def test_an_upgrade_that_nobody_speaks_is_ignored(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    plain = request(app, ask())
    head, _, body = plain.partition(b"\r\n\r\n")
    asks = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"
    whole = head + asks + b"\r\n\r\n" + body
    for cut in (len(whole), len(head), len(head) + len(asks) + 4, len(whole) - 5):
        with Caller(gateway) as caller:
            caller.send(whole[:cut])
            caller.send(whole[cut:])
            assert caller.read_reply().status == 200
            caller.send(plain)
            assert caller.read_reply().status == 200
    assert {received.body for received in engine.requests()} == {engine.requests()[0].body}
    app.usage_rows(8)


def test_heads_and_addresses_have_a_bound(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    plain = request(app, ask())
    line, _, rest = plain.partition(b"\r\n")
    long_header = line + b"\r\nX-Long: " + b"x" * (1 << 20) + b"\r\n" + rest
    many_headers = line + b"\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + rest
    long_address = line.replace(b" HTTP", b"?" + b"x" * (1 << 20) + b" HTTP") + b"\r\n" + rest
    for sent, statuses in ((long_header, {431}), (many_headers, {431}), (long_address, {414, 431})):
        with Caller(gateway) as caller:
            caller.send(sent)
            reply = caller.read_reply()
            assert reply.status in statuses
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert engine.requests() == []


def test_a_long_body_without_a_key_is_refused_before_it_comes(gateway: Gateway, app: App) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"
    with Caller(gateway) as caller:
        caller.send(head)
        assert caller.read_reply().status == 401


CALLER_LIMIT = 1.0
# An idle connection is kept for a second, and the first try to close one meets a fault.
QUICK = """
import api.lane.lane, api.lane.protocol
api.lane.lane.KEEP_ALIVE_SECONDS = 1.0
close_idle = api.lane.protocol.LaneProtocol.close_idle
def fault(connection):
    api.lane.protocol.LaneProtocol.close_idle = close_idle
    raise RuntimeError("a fault while a connection is closed")
api.lane.protocol.LaneProtocol.close_idle = fault
"""


@pytest.fixture(scope="module")
def impatient(
    servers: Servers, database: str, _engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("impatient")
    (folder / "sitecustomize.py").write_text(QUICK)
    options = (f"--caller-timeout={CALLER_LIMIT}",)
    env = {"PYTHONPATH": str(folder)}
    with running_gateway(
        servers, database, folder, engines=[_engine.url], options=options, env=env
    ) as gateway:
        yield gateway


def is_held(gateway: Gateway, caller: Caller) -> bool:
    """Whether the gateway has not closed its end of the connection."""
    here, there = (f":{port:04X}" for port in (gateway.port, caller.sock.getsockname()[1]))
    ends = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(end[0].endswith(here) and end[1].endswith(there) and end[2] == "01" for end in ends)


def stalled(engine: ScriptedEngine) -> int | None:
    """How many requests the engine has got, when no more come."""
    before = len(engine.requests())
    time.sleep(0.25)
    return before if before and len(engine.requests()) == before else None


def long_answer(engine: ScriptedEngine, size: int) -> None:
    engine.always(lambda _: [wire.reply(wire.chat_answer("x" * size))])


def test_pipelined_calls_whose_answers_nobody_reads_wait(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    long_answer(engine, 60_000)
    with Caller(gateway, receive_buffer=4096) as caller:
        caller.send(b"".join([request(app, ask())] * 300))
        assert until(lambda: stalled(engine), "calls wait") < 200
        for number in range(300):
            assert caller.read_reply().status == 200, number
        # And the connection is good for more.
        caller.send(get("/v1/models", app.key))
        assert caller.read_reply().status == 200
    app.usage_rows(300)


def test_pipelined_requests_to_fastapi_wait_too(gateway: Gateway, app: App, engine: ScriptedEngine) -> None:
    long_answer(engine, 8_000_000)
    with Caller(gateway, receive_buffer=4096) as caller:
        caller.send(request(app, ask()) + get("/v1/models", app.key))
        app.usage_rows(1)
        caller.send(get("/v1/models", app.key) + request(app, ask()))
        assert [caller.read_reply().status for _ in range(4)] == [200] * 4
    app.usage_rows(2)


def test_a_caller_that_never_reads_its_pipelined_answers_is_given_up(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    long_answer(engine, 60_000)
    with Caller(impatient, receive_buffer=4096) as caller:
        caller.send(b"".join([request(app, ask())] * 300))
        made = until(lambda: stalled(engine), "calls wait")
        until(lambda: not is_held(impatient, caller), "the connection is given up")
    app.usage_rows(made)


def test_a_caller_that_never_reads_the_last_answer_of_its_connection_is_given_up(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    long_answer(engine, 12_000_000)
    with Caller(impatient, receive_buffer=4096) as caller:
        caller.send(request(app, ask(), headers={"Connection": "close"}))
        (row,) = app.usage_rows(1)
        assert row["outcome"] == "completed"
        until(lambda: not is_held(impatient, caller), "the connection is given up")


def test_a_caller_that_reads_slowly_gets_all_of_the_last_answer(
    impatient: Gateway, engine: ScriptedEngine
) -> None:
    app = impatient.new_app()
    size = 12_000_000
    long_answer(engine, size)
    began = time.monotonic()
    got = 0
    with Caller(impatient, receive_buffer=1 << 16) as caller:
        caller.send(request(app, ask(), headers={"Connection": "close"}))
        while data := caller.sock.recv(200_000):
            got += len(data)
            if time.monotonic() - began < 3 * CALLER_LIMIT:
                time.sleep(0.05)
    assert got > size


def test_empty_lines_keep_no_connection_and_a_fault_does_not_end_the_sweeping(impatient: Gateway) -> None:
    began = time.monotonic()
    with Caller(impatient) as caller, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() - began < 5.0:
            caller.send(b"\r\n")
            time.sleep(0.1)
    assert time.monotonic() - began < 5.0, "it was kept"
    with Caller(impatient) as caller:
        caller.wait_closed()


@pytest.mark.parametrize("broken", [b"\x00\x01 this is no HTTP \r\n\r\n", POST + b"X: " + b"x" * 200_000])
def test_a_refusal_does_not_overtake_an_answer_of_fastapi(gateway: Gateway, app: App, broken: bytes) -> None:
    for _ in range(5):
        with Caller(gateway) as caller:
            caller.send(get("/v1/models", app.key) + broken)
            reply = caller.read_reply()
            assert reply.status == 200
            assert reply.json()["object"] == "list"
            # It is told after that, or not at all when the answer was still to come.
            with contextlib.suppress(BrokenOff):
                assert 400 <= caller.read_reply().status < 500
            caller.wait_closed()


def test_a_broken_body_for_fastapi_has_one_answer(gateway: Gateway) -> None:
    head = b"POST /admin/apps HTTP/1.1\r\nHost: g\r\n"
    for cut in (0, 0.05):
        with Caller(gateway) as caller:
            caller.send(head + CHUNKED)
            time.sleep(cut)
            caller.send(b"zz\r\n{}\r\n")
            assert 400 <= caller.read_reply().status < 500
