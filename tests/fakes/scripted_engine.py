"""An OpenAI-compatible engine whose every write is scripted by the test.

It runs in a thread with an event loop of its own, speaks HTTP/1.1 on raw sockets (its own strict parser, so
that it shares no code with what it tests), and records each request byte for byte.

    with ScriptedEngine() as engine:
        engine.script(*stream_reply([role(), text("a")]), Pause("rest"), chunk(finish()), Reset())
        ...call the gateway...
        engine.last().wait_reached("rest")
        engine.go("rest")

A script is a list of steps (see steps.py); plain bytes are written as they are. When it ends the connection
waits for its next request. Scripts given by `script()` serve the next generation requests, one each, in
order; else the function given to `always()` chooses; else a good answer is made from the request: as many
words as `max_tokens` asks for (5 without it), streamed if it asks for that.

GET /v1/models, /metrics, /version, /health, /load and POST /tokenize, /v1/messages/count_tokens are answered
by themselves and recorded in `engine.service`. A token is a whitespace-separated word of `prompt`, or of all
text of `messages` plus 1 per message. The good answer's prompt_tokens are counted the same way.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

from tests.fakes import vllm_wire as wire
from tests.fakes.received import DEADLINE, NotHttp, Received, parse_request
from tests.fakes.steps import Close, Hold, Pause, Repeat, Reset, Script, Step, Wait, Write, byte_by_byte

__all__ = [
    "Close",
    "Hold",
    "Pause",
    "Received",
    "Repeat",
    "Reset",
    "Script",
    "ScriptedEngine",
    "Step",
    "Wait",
    "Write",
    "byte_by_byte",
]

POST_ONLY = {"/v1/chat/completions", "/tokenize", "/v1/messages/count_tokens"}
BETWEEN_WRITES = 0.001  # seconds: long enough for the reader to see two reads, short enough for 1,000 of them


def tokens_of(ask: dict[str, Any]) -> int:
    """The documented count of `/tokenize`."""
    if "prompt" in ask:
        return len(str(ask["prompt"]).split())
    count = 0
    for message in ask.get("messages", []):
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        count += 1 + sum(len(part.split()) for part in parts)
    return count


def good_answer(request: Received) -> Script:
    """What a healthy vLLM would say; `hello hello ...`, one token per word."""
    ask = request.json()
    count = ask.get("max_completion_tokens") or ask.get("max_tokens") or 5
    choices = ask.get("n") or 1
    if ask.get("stream"):
        wanted = bool((ask.get("stream_options") or {}).get("include_usage"))
        events = wire.chat_events(
            ["hello "] * count, prompt=tokens_of(ask), with_usage=wanted, choices=choices, reason="length"
        )
        return wire.stream_reply(events)
    answer = wire.chat_answer(
        "hello " * count,
        prompt=tokens_of(ask),
        completion=count * choices,
        choices=choices,
        reason="length",
    )
    return [wire.reply(answer)]


class ScriptedEngine:
    def __init__(self, *, port: int = 0, model: str = wire.MODEL) -> None:
        self.model = model
        self.port = port
        self.service: list[Received] = []
        self.faults: list[str] = []  # what was not HTTP/1.1 in what we got
        self.connections: set[_Connection] = set()
        self._received: list[Received] = []
        self._scripts: deque[Script] = deque()
        self._choose: Callable[[Received], Script] = good_answer
        self._gone: dict[str, asyncio.Event] = {}
        self._numbers = iter(range(1, 1 << 62))
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-engine", daemon=True)
        self._server: asyncio.Server | None = None

    # what tests say

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *steps: Step) -> None:
        """Serves one coming generation request; several calls queue up."""
        self._scripts.append(steps)

    def always(self, choose: Callable[[Received], Script] | None) -> None:
        """Chooses the script of each request that finds no queued one; None: the good answer again."""
        self._choose = choose or good_answer

    def go(self, name: str) -> None:
        """Lets every script that waits, or will wait, at this pause go on."""
        self._loop.call_soon_threadsafe(lambda: self._gate(name).set())

    def requests(self) -> list[Received]:
        """The generation requests so far."""
        with self._changed:
            return list(self._received)

    def last(self, within: float = DEADLINE) -> Received:
        return self.wait_requests(1, within)[-1]

    def wait_requests(self, count: int, within: float = DEADLINE) -> list[Received]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._received) >= count, within):
                raise AssertionError(f"{len(self._received)} of {count} requests came within {within} s")
            return list(self._received)

    def wait_connections(self, count: int, within: float = DEADLINE) -> None:
        """Waits until exactly `count` connections are open."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.connections) == count, within):
                raise AssertionError(f"{len(self.connections)} connections are open, not {count}")

    def forget(self) -> None:
        """Drops scripts, pauses and records, as between two tests."""
        with self._changed:
            self._received, self.service, self.faults = [], [], []
        self._scripts.clear()
        self.always(None)
        self._call(self._gone.clear)

    def down(self) -> None:
        """Stops listening and breaks all connections: new ones are refused."""

        async def close() -> None:
            if self._server:
                self._server.close()
            for connection in list(self.connections):
                connection.reset()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(DEADLINE)
        self._server = None

    def up(self) -> None:
        """Listens (again), on the same port."""

        async def listen() -> asyncio.Server:
            return await self._loop.create_server(
                lambda: _Connection(self), "127.0.0.1", self.port, reuse_address=True, backlog=2048
            )

        self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(DEADLINE)
        self.port = self._server.sockets[0].getsockname()[1]

    def start(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def stop(self) -> None:
        self.down()

        async def end_scripts() -> None:
            scripts = asyncio.all_tasks() - {asyncio.current_task()}
            for script in scripts:
                script.cancel()
            await asyncio.gather(*scripts, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end_scripts(), self._loop).result(DEADLINE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # what connections say

    def _call(self, function: Callable[[], Any]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(DEADLINE)

    def _gate(self, name: str) -> asyncio.Event:
        return self._gone.setdefault(name, asyncio.Event())

    def _note(self, change: Callable[[], Any]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _script_for(self, request: Received) -> Script:
        path = urlsplit(request.target).path
        card = {"id": self.model, "object": "model", "created": wire.CREATED, "owned_by": "vllm"}
        answers: dict[str, dict[str, Any]] = {
            "/v1/models": {"object": "list", "data": [{**card, "max_model_len": 65536}]},
            "/version": {"version": "0.32.0"},
            "/load": {"server_load": 0},
            "/health": {},
        }
        if request.method == "GET" and path in POST_ONLY:  # by which engine.probe finds what there is
            return [wire.reply({"detail": "Method Not Allowed"}, 405)]
        if path == "/tokenize":
            count = tokens_of(request.json())
            answers[path] = {"count": count, "max_model_len": 65536, "tokens": list(range(count))}
        if path == "/v1/messages/count_tokens":
            answers[path] = {"input_tokens": tokens_of(request.json())}
        if path in answers or path == "/metrics":
            self._note(lambda: self.service.append(request))
            if path == "/metrics":
                text = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
                return [wire.reply(text, content_type="text/plain; version=0.0.4")]
            return [wire.reply(answers[path])]
        script = self._scripts.popleft() if self._scripts else None
        self._note(lambda: self._received.append(request))
        if script is not None:
            return script
        if self._choose is good_answer and path != "/v1/chat/completions":
            return [wire.reply({"detail": "Not Found"}, 404)]
        return self._choose(request)


class _Connection(asyncio.Protocol):
    """Requests of one connection, one after the other; the peer's going is seen while a script runs."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.number = next(engine._numbers)
        self.buffer = bytearray()
        self.more, self.gone, self.writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.writable.set()
        self.current: Received | None = None
        self.ours = False  # we closed it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.engine._note(lambda: self.engine.connections.add(self))
        self.task = asyncio.get_running_loop().create_task(self.serve())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.more.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def eof_received(self) -> bool:
        self.left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.left()
        self.engine._note(lambda: self.engine.connections.discard(self))

    def left(self) -> None:
        self.gone.set()
        self.more.set()
        self.writable.set()
        if self.current is not None and self.current.closed is None:
            self.current._change(closed=time.monotonic(), closed_by_peer=not self.ours)

    def close(self) -> None:
        self.ours = True
        self.transport.close()

    def reset(self) -> None:
        self.ours = True
        sock = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def serve(self) -> None:
        try:
            while (request := await self.read_request()) is not None:
                self.current = request
                for step in self.engine._script_for(request):
                    await self.play(step, request)
                    if self.gone.is_set() or self.ours:
                        break
                request._change(ended=time.monotonic())
                if self.gone.is_set() or self.ours:
                    return
        except NotHttp as fault:
            self.fault(str(fault))
            self.transport.write(wire.reply(wire.error_body(str(fault)), 400, connection="close"))
            self.close()
        except Exception as fault:
            self.fault(repr(fault))
            self.reset()
            raise

    def fault(self, what: str) -> None:
        self.engine._note(lambda: self.engine.faults.append(what))

    async def play(self, step: Step, request: Received) -> None:
        if isinstance(step, bytes):
            await self.write(step, request)
        elif isinstance(step, Write):
            for piece in step.pieces():
                await self.write(piece, request)
                await asyncio.sleep(BETWEEN_WRITES)
        elif isinstance(step, Pause):
            request._change(reached=request.reached | {step.name})
            await self.until(self.engine._gate(step.name))
        elif isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Repeat):
            for _ in range(step.times):
                if self.gone.is_set():
                    return
                await self.write(step.data, request)
                await asyncio.sleep(step.between)
        elif isinstance(step, Close):
            self.close()
        elif isinstance(step, Reset):
            self.reset()
        else:
            await self.gone.wait()

    async def write(self, data: bytes, request: Received) -> None:
        await self.writable.wait()
        if not self.gone.is_set():
            self.transport.write(data)
            request.sent += len(data)

    async def until(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.gone.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def read_request(self) -> Received | None:
        while not self.gone.is_set():
            self.more.clear()
            if found := parse_request(self.buffer, len(self.engine.requests()) + 1, self.number):
                request, length = found
                del self.buffer[:length]
                return request
            await self.more.wait()
        return None
