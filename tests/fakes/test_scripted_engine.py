"""The scripted engine does what its scripts say; what it records is what came."""

import socket
import time

import orjson
import pytest

from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Close, Hold, Pause, Reset, ScriptedEngine, Write, byte_by_byte


def post(body: dict[str, object], path: str = "/v1/chat/completions") -> bytes:
    raw = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: engine\r\nX-Odd:  two words \r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def connect(engine: ScriptedEngine) -> socket.socket:
    return socket.create_connection(("127.0.0.1", engine.port), timeout=5)


def read_until(sock: socket.socket, end: bytes) -> tuple[bytes, int]:
    data, reads = b"", 0
    while not data.endswith(end):
        piece = sock.recv(65536)
        if not piece:
            break
        data, reads = data + piece, reads + 1
    return data, reads


def test_a_request_is_recorded_as_it_came(engine: ScriptedEngine) -> None:
    with connect(engine) as sock:
        sock.sendall(post({"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2}))
        data, _ = read_until(sock, b"}}}")
        request = engine.last()
        assert request.header("x-odd") == "two words"
        assert request.body == b'{"messages":[{"role":"user","content":"a b"}],"max_tokens":2}'
        assert b'"content":"hello hello "' in data
        assert b'"prompt_tokens":3' in data
        assert not request.closed_by_peer
    request.wait_closed()


def test_every_write_of_a_script_is_a_read_of_its_own(engine: ScriptedEngine) -> None:
    reply = wire.stream_head() + wire.chunk(wire.DONE) + wire.END_OF_CHUNKS
    engine.script(byte_by_byte(reply))
    engine.script(Write(reply, cuts=(10, len(reply) - 1)))
    with connect(engine) as sock:
        sock.sendall(post({"stream": True}))
        data, reads = read_until(sock, wire.END_OF_CHUNKS)
        assert data == reply
        assert reads > len(reply) * 0.8
        sock.sendall(post({"stream": True}))
        assert read_until(sock, wire.END_OF_CHUNKS) == (reply, 3)
    assert [request.connection for request in engine.requests()] == [engine.requests()[0].connection] * 2


def test_a_pause_waits_until_told_and_the_peers_going_ends_the_script(engine: ScriptedEngine) -> None:
    engine.script(b"one", Pause("two"), b"two", Hold())
    with connect(engine) as sock:
        sock.sendall(post({}))
        assert sock.recv(100) == b"one"
        engine.last().wait_reached("two")
        engine.go("two")
        assert sock.recv(100) == b"two"
    engine.last().wait_closed()
    engine.last().wait_ended()


def test_close_and_reset_look_different_to_the_peer(engine: ScriptedEngine) -> None:
    engine.script(b"x", Close())
    engine.script(Reset())
    with connect(engine) as sock:
        sock.sendall(post({}))
        assert read_until(sock, b"never")[0] == b"x"
    with connect(engine) as sock:
        sock.sendall(post({}))
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
    assert not engine.last().closed_by_peer


def test_an_engine_that_is_down_refuses_and_comes_back_on_its_port(engine: ScriptedEngine) -> None:
    engine.down()
    with pytest.raises(ConnectionRefusedError):
        connect(engine)
    engine.up()
    with connect(engine) as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: engine\r\n\r\n")
        assert b"0.32.0" in read_until(sock, b"}")[0]


def test_what_is_not_http_is_refused_and_noted(engine: ScriptedEngine) -> None:
    lengths = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with connect(engine) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: e\r\n" + lengths)
        assert read_until(sock, b"never")[0].startswith(b"HTTP/1.1 400 ")
    assert engine.faults == ["more than one way to tell the body's length"]
    engine.faults.clear()


def test_chunked_bodies_are_put_together(engine: ScriptedEngine) -> None:
    with connect(engine) as sock:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n"
        for piece in (head, b'6\r\n{"max', b"_\r\n", wire.chunk(b'tokens":1}'), wire.END_OF_CHUNKS):
            sock.sendall(piece)
            time.sleep(0.002)
        read_until(sock, b"}}}")
    assert engine.last().chunked
    assert engine.last().body == b'{"max_tokens":1}'
