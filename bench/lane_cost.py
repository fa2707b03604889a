"""CPU of the lane's own code per call and per streamed token: no sockets, no servers, nothing else in it.

    python -m bench.lane_cost [--calls 20000] [--prompt-bytes 800] [--tokens 64]

Requests are fed to the lane's protocol as bytes, answers to its engine connections; limits, cache and journal
say yes at once (bench/limits_cost.py and bench/journal_cost.py measure those). Best of 50 rounds.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import orjson
import uvicorn
from uvicorn.server import ServerState

from api.access.directory import Access, App, Directory
from api.lane.counter import Counter
from api.lane.lane import Lane, Patience
from api.lane.protocol import LaneProtocol, bound_to
from api.limits.decisions import Admitted
from bench.mock_engine import DONE, FINISH, ROLE, STREAM_HEAD, TOKEN, chunk, delta, event, usage, whole_answer
from engine.balancer import Balancer
from engine.cache import ResultCache
from engine.registry import Model, Registry, Replica, Version
from engine.upstream import Connection, Upstreams
from ledger.ids import new_id
from ledger.prices import Price, PriceBook

KEY = b"sk-bench"
ROUNDS = 50  # short ones: on a loaded machine the best of many is steady


class Wire:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def taken(self) -> bytes:
        data, self.out = b"".join(self.out), []
        return data

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the lane gave a connection up")

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read from a wire."""

    resume_reading = pause_reading


class Yes:
    """Limiter, cache server and journal in one: everything is granted, nothing is known, all is written."""

    ADMITTED = Admitted(b"x-ratelimit-limit-requests: 1000000000\r\n")

    def admit(self, reservation: object, then: Callable[[object], None]) -> None:
        then(self.ADMITTED)

    def settle(self, call_id: str, **used: int) -> None:
        """It ended."""

    def open(self, call: object, then: Callable[[], None], failed: Callable[[], None]) -> None:
        then()

    def close_call(self, close: object, then: Callable[[], None]) -> None:
        then()


class EmptyCache(ResultCache):
    def __init__(self) -> None:
        self.max_bytes = 1 << 20

    def get(self, key: bytes, then: Callable[[bytes | None], None]) -> None:
        then(None)

    def put(self, key: bytes, answer: bytes) -> None:
        """Kept."""


def registry() -> Registry:
    model = Model(new_id(), "mock", 4096, None, frozenset(("chat/completions",)), 0)
    version = Version(new_id(), "v1", 100, model)
    model.versions.append(version)
    for number in range(2):
        replica = Replica(
            new_id(), f"r{number}", f"http://127.0.0.1:{number + 1}", "127.0.0.1", number + 1, "", "vllm",
            "mock", 4096, "ready", version,
        )  # fmt: skip
        version.replicas.append(replica)
    return Registry({"mock": model})


def make_lane(loop: asyncio.AbstractEventLoop) -> Lane:
    app = App(new_id(), new_id(), "bench", (), ())
    access = Access(new_id(), app, frozenset(("chat",)), None)
    directory = Directory({sha256(KEY).digest(): access})
    prices = PriceBook([Price(new_id(), "mock", "USD", 1, 1, 2, 0)])
    snapshot: Any = SimpleNamespace(
        directory=directory, registry=registry(), prices=prices, stale=lambda: False
    )
    yes: Any = Yes()
    return Lane(
        loop=loop, snapshot=snapshot, limiter=yes, cache=EmptyCache(), journal=yes, balancer=Balancer(),
        upstreams=Upstreams(loop), counter=Counter(), patience=Patience(), grace_seconds=1.0,
    )  # fmt: skip


class Bench:
    """One caller's connection and two engines' connections, driven by hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop, prompt_bytes: int, tokens: int) -> None:
        self.lane = make_lane(loop)
        config = uvicorn.Config(no_app, http=LaneProtocol, ws="none", lifespan="off", log_config=None)
        config.load()
        self.protocol = bound_to(self.lane)(config, ServerState(), {}, loop)
        self.caller = Wire()
        self.protocol.connection_made(self.caller)  # type: ignore[arg-type]
        self.engines: dict[Wire, Connection] = {}
        for number in range(2):
            wire, connection = Wire(), Connection(self.lane.upstreams.at("127.0.0.1", number + 1))
            connection.connection_made(wire)  # type: ignore[arg-type]
            connection.upstream.open += 1
            connection.rest()
            self.engines[wire] = connection
        self.tokens = tokens
        self.whole = request(prompt_bytes, tokens, stream=False)
        self.streamed = request(prompt_bytes, tokens, stream=True)
        self.end_of_stream = (
            FINISH + chunk(event({**delta({}), "choices": [], "usage": usage(tokens)})) + DONE
        )

    def asked(self) -> Connection:
        """The engine connection that the request went to."""
        for wire, connection in self.engines.items():
            if wire.taken():
                return connection
        raise AssertionError(f"no engine was asked: {self.caller.taken()!r}")

    def call(self) -> None:
        """One call, answered whole."""
        self.protocol.data_received(self.whole)
        self.asked().data_received(whole_answer(self.tokens))
        assert b"fox fox" in self.caller.taken()

    def stream(self) -> None:
        """One call, streamed."""
        self.protocol.data_received(self.streamed)
        engine = self.asked()
        engine.data_received(STREAM_HEAD + ROLE)
        for _ in range(self.tokens):
            engine.data_received(TOKEN)
        engine.data_received(self.end_of_stream)
        assert self.caller.taken().endswith(b"0\r\n\r\n")


async def no_app(scope: object, receive: object, send: object) -> None:
    """Everything here goes to the lane."""


def request(prompt_bytes: int, tokens: int, *, stream: bool) -> bytes:
    prompt = ("You plan cuts, captions and music. " * (prompt_bytes // 34 + 1))[:prompt_bytes]
    body = orjson.dumps(
        {
            "model": "mock",
            "temperature": 0,
            "max_tokens": tokens,
            "messages": [
                {"role": "system", "content": prompt},
                {"role": "user", "content": "Write one caption."},
            ],
            "user": "user-0001",
        }
        | ({"stream": True} if stream else {})
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAuthorization: Bearer {KEY.decode()}\r\n\r\n"
    )
    return head.encode() + body


def cost(do: Callable[[], None], times: int) -> float:
    """Process CPU of one `do`, in microseconds: the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            do()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--prompt-bytes", type=int, default=800)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    loop = asyncio.new_event_loop()
    loop.time = lambda: 0.0  # type: ignore[method-assign]  # no connection grows old, however slow the machine
    bench = Bench(loop, options.prompt_bytes, options.tokens)
    calls = max(1, options.calls // ROUNDS)
    call = cost(bench.call, calls)
    stream = cost(bench.stream, max(1, calls // 10))
    short = Bench(loop, options.prompt_bytes, 1)
    begun = cost(short.stream, max(1, calls // 4))
    print(f"{call:.1f} µs per call, {(stream - begun) / (options.tokens - 1):.2f} µs per streamed token")
    print(f"({stream:.1f} µs per stream of {options.tokens} tokens, {begun:.1f} µs per stream of 1)")
    loop.close()


if __name__ == "__main__":
    main()
