"""An engine is found out by asking; every way in which it cannot serve is one sentence."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.errors import EngineHasNoSuchModel, EngineUnreachable, InvalidSetting
from engine.probe import probe, real_token, wait_ready
from tests.real_engine import RealEngine, free_ports

CHAT = {"chat/completions", "completions", "responses", "messages"}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_light_engine_is_found_with_or_without_v1(light_engine: RealEngine, suffix: str) -> None:
    facts = asyncio.run(probe(light_engine.url + suffix))
    assert facts.url == light_engine.url
    assert (facts.kind, facts.engine_model, facts.base_path) == ("light", "smollm2", "")
    assert facts.endpoints == CHAT
    assert facts.slots == light_engine.slots
    assert facts.context_length == light_engine.context
    assert facts.has_tokenize
    assert facts.created_drifts


@pytest.mark.vllm
def test_vllm_is_found(vllm_replicas: list[RealEngine]) -> None:
    facts = asyncio.run(probe(vllm_replicas[1].url + "/v1", "tiny-llama"))
    assert (facts.kind, facts.engine_model, facts.version) == ("vllm", "tiny-llama", "0.32.0")
    assert facts.endpoints == CHAT
    assert facts.context_length == vllm_replicas[1].context
    assert facts.has_tokenize
    assert not facts.created_drifts


def test_a_model_that_it_does_not_serve_is_refused_with_those_it_does(light_engine: RealEngine) -> None:
    with pytest.raises(EngineHasNoSuchModel, match=r"does not serve 'gpt-x' but 'smollm2'") as refused:
        asyncio.run(probe(light_engine.url, "gpt-x"))
    assert refused.value.served == ("smollm2",)


def test_nobody_at_the_address_is_said_with_host_and_port() -> None:
    [port] = free_ports(1)
    with pytest.raises(EngineUnreachable, match=f"127.0.0.1:{port} .*refused"):
        asyncio.run(probe(f"http://127.0.0.1:{port}"))


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that gives every connection the same bytes (None: says nothing) and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    if answer is None:
                        over.wait(10)
                    else:
                        peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def whole(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (whole("200 OK", b"<html>"), "is no engine"),
        (whole("404 Not Found", b"{}"), "is no engine"),
        (whole("401 Unauthorized", b"{}"), "asks for a key"),
        (whole("200 OK", b'{"object":"list","data":[]}'), "no model"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "Nothing answers"),
    ],
)
def test_what_is_no_engine_is_said_in_one_sentence(answer: bytes, sentence: str) -> None:
    with answering(answer) as url, pytest.raises((EngineUnreachable, EngineHasNoSuchModel), match=sentence):
        asyncio.run(probe(url))


def test_a_frozen_engine_is_given_up_after_the_limit() -> None:
    with answering(None) as url, pytest.raises(EngineUnreachable, match=r"within 0\.2 s"):
        asyncio.run(probe(url, within=0.2))


def test_two_models_need_a_choice() -> None:
    two = whole("200 OK", b'{"object":"list","data":[{"id":"a"},{"id":"b"}]}')
    with answering(two) as url, pytest.raises(EngineHasNoSuchModel, match=r"'a', 'b'.*--model"):
        asyncio.run(probe(url))


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSetting) as refused:
        asyncio.run(probe("http://user:sesame@127.0.0.1:1"))
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("endpoint", sorted(CHAT))
def test_readiness_is_a_token_that_was_generated(light_engine: RealEngine, endpoint: str) -> None:
    token = asyncio.run(real_token(light_engine.url, "smollm2", endpoint=endpoint))
    assert token.completion_tokens >= 1


def test_an_engine_that_refuses_is_not_ready(light_engine: RealEngine) -> None:
    with pytest.raises(EngineUnreachable, match="501"):
        asyncio.run(real_token(light_engine.url, "smollm2", endpoint="embeddings"))


def test_waiting_for_an_engine_that_never_comes_ends_with_the_reason() -> None:
    [port] = free_ports(1)
    with pytest.raises(EngineUnreachable, match="refused"):
        asyncio.run(wait_ready(f"http://127.0.0.1:{port}", "m", within=0.6))
