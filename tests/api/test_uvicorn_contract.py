"""What the lane relies on in uvicorn: private names and behaviours, held against the pinned version.

When a new uvicorn fails here, api/lane/protocol.py and the end of api/process.py have to be read again.
"""

import asyncio
import inspect
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

ROOT = Path(__file__).resolve().parents[2]


class FakeTransport:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"sockname": ("127.0.0.1", 80), "peername": ("127.0.0.1", 5000)}.get(name, default)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Recording(HttpToolsProtocol):
    """Starts no tasks, notes what would have been started."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.started: list[tuple[object, object]] = []

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.started.append((cycle, app))


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that is never run."""


@pytest.fixture
def protocol() -> Iterator[Recording]:
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(nothing, http=Recording, ws="none", lifespan="off", log_config=None)
    config.load()
    connection = Recording(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    connection.connection_made(FakeTransport())  # type: ignore[arg-type]
    yield connection
    loop.close()


def transport_of(protocol: Recording) -> FakeTransport:
    transport: Any = protocol.transport
    assert isinstance(transport, FakeTransport)
    return transport


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_installed_uvicorn_is_the_pinned_one() -> None:
    pins = (ROOT / "requirements" / "core.txt").read_text().splitlines()
    assert f"uvicorn=={version('uvicorn')}" in pins
    assert f"httptools=={version('httptools')}" in pins


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("__init__", ["config", "server_state", "app_state", "_loop"]),
        ("connection_made", ["transport"]),
        ("connection_lost", ["exc"]),
        ("data_received", ["data"]),
        ("on_message_begin", []),
        ("on_url", ["url"]),
        ("on_header", ["name", "value"]),
        ("on_headers_complete", []),
        ("on_body", ["body"]),
        ("on_message_complete", []),
        ("_start_asgi_task", ["cycle", "app"]),
        ("on_response_complete", []),
        ("pause_writing", []),
        ("resume_writing", []),
        ("shutdown", []),
        ("send_400_response", ["msg"]),
    ],
)
def test_the_methods_that_the_lane_overrides_or_calls_have_the_parameters_it_knows(
    name: str, parameters: list[str]
) -> None:
    signature = inspect.signature(getattr(HttpToolsProtocol, name))
    assert list(signature.parameters)[1:] == parameters


def test_a_connection_has_the_state_that_the_lane_uses(protocol: Recording) -> None:
    assert isinstance(protocol.parser, httptools.HttpRequestParser)
    assert protocol.transport is not None
    assert vars(protocol)["cycle"] is None
    assert len(protocol.pipeline) == 0
    assert protocol.app is not None
    assert protocol.loop is not None
    assert protocol.server_state.total_requests == 0
    assert protocol in protocol.server_state.connections


def test_a_request_is_parsed_by_the_methods_of_the_instance_and_started_once(protocol: Recording) -> None:
    protocol.data_received(GET)
    ((cycle, app),) = protocol.started
    assert type(cycle) is RequestResponseCycle
    assert cycle is protocol.cycle
    assert app is protocol.app
    assert protocol.url == b"/"
    assert protocol.headers == [(b"host", b"x")]


def test_headers_may_be_given_after_the_scope_was_made(protocol: Recording) -> None:
    """The lane defers on_message_begin until it knows the path, then repeats the headers."""
    protocol.on_message_begin()
    scope = protocol.scope
    protocol.url = b"/"
    protocol.on_header(b"X-A", b"1")
    assert scope["headers"] == [(b"x-a", b"1")]


def test_a_request_behind_an_unfinished_one_waits_in_the_pipeline_and_reading_stops(
    protocol: Recording,
) -> None:
    protocol.data_received(GET)
    first = protocol.cycle
    protocol.data_received(GET)
    assert len(protocol.started) == 1
    assert not transport_of(protocol).reading
    assert [cycle for cycle, _ in protocol.pipeline] == [protocol.cycle]
    assert protocol.cycle is not first
    first.response_complete = True
    protocol.on_response_complete()
    assert protocol.started[1][0] is protocol.cycle
    assert transport_of(protocol).reading
    assert protocol.server_state.total_requests == 1


def test_the_pipeline_is_left_at_its_right_end(protocol: Recording) -> None:
    for _ in range(3):
        protocol.data_received(GET)
    waiting = [cycle for cycle, _ in protocol.pipeline]
    protocol.on_response_complete()
    assert protocol.started[-1][0] is waiting[-1]


def test_any_object_with_three_attributes_passes_for_a_cycle(protocol: Recording) -> None:
    """`response_complete`, `disconnected`, `message_event.set()`; shutdown writes `keep_alive`."""

    class Event:
        def set(self) -> None:
            self.was_set = True

    class Cycle:
        response_complete = False
        disconnected = False
        keep_alive = True
        message_event = Event()

    cycle: Any = Cycle()
    protocol.cycle = cycle
    protocol.shutdown()
    assert not transport_of(protocol).closed
    assert cycle.keep_alive is False
    protocol.connection_lost(None)
    assert cycle.disconnected
    assert cycle.message_event.was_set
    assert protocol not in protocol.server_state.connections


def test_a_cycle_has_the_state_by_which_the_lane_lets_it_end_before_a_refusal(protocol: Recording) -> None:
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
    cycle = protocol.cycle
    assert cycle.more_body
    protocol.data_received(b"x")
    assert not cycle.more_body
    assert cycle.keep_alive
    assert not any((cycle.response_started, cycle.response_complete, cycle.disconnected))
    assert cycle.message_event.is_set()
    assert cycle.on_response == protocol.on_response_complete


@pytest.mark.parametrize("complete", [None, True], ids=["no request yet", "answered"])
def test_shutdown_closes_a_connection_without_a_running_cycle(
    protocol: Recording, complete: bool | None
) -> None:
    if complete:
        protocol.data_received(GET)
        protocol.cycle.response_complete = True
    protocol.shutdown()
    assert transport_of(protocol).closed


def test_what_is_no_http_ends_in_send_400_response(
    protocol: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(protocol, "send_400_response", said.append)
    protocol.data_received(b"\x00\x01\r\n\r\n")
    assert len(said) == 1


def test_pausing_of_writing_is_kept_by_the_flow(protocol: Recording) -> None:
    protocol.pause_writing()
    assert protocol.flow.write_paused
    protocol.resume_writing()
    assert not protocol.flow.write_paused


def test_a_protocol_class_given_as_http_is_used_as_it_is() -> None:
    config = uvicorn.Config(nothing, http=Recording, lifespan="off", log_config=None)
    config.load()
    assert config.http_protocol_class is Recording


def test_the_server_asks_each_connection_to_shut_down_waits_for_it_and_then_cancels_only_tasks() -> None:
    asked: list[object] = []

    class Connection:
        def shutdown(self) -> None:
            asked.append(self)

    async def scenario() -> float:
        config = uvicorn.Config(
            nothing, lifespan="off", log_config=None, timeout_graceful_shutdown=1, ws="none"
        )
        config.load()
        server = Server(config)
        server.lifespan = config.lifespan_class(config)
        server.servers = []
        stubborn: Any = Connection()
        server.server_state.connections.add(stubborn)
        task = asyncio.create_task(asyncio.sleep(30))
        server.server_state.tasks.add(task)
        began = asyncio.get_running_loop().time()
        await server.shutdown()
        took = asyncio.get_running_loop().time() - began
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert asked == [stubborn]  # never closed, never asked again: ending calls is the lane's own duty
        return took

    assert 1.0 <= asyncio.run(scenario()) < 3.0
