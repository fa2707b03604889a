"""Load for a chat endpoint in front of mock_engine.py; checks every answer, reports what the servers cost.

    python -m bench.load URL [--pid NAME=PID ...] [--stream] [--connections 64] [--rate 200] [--seconds 10]
                       [--tokens 64] [--prompt-bytes 800] [--key KEY ...] [--read-rate BYTES] [-H 'k: v']

Closed loop by default (each connection asks again when answered); `--rate` makes it an open loop at that
many calls/s over all connections. Every prompt is unique (a nonce at its head), so that no cache answers.
An answer counts only if it is whole: status 200, exactly --tokens tokens, usage or [DONE] present.
`--read-rate` reads each stream at that many bytes/s (slow readers).

Prints one JSON line: calls/s, tokens/s, latency, time to first byte and longest gap inside a stream (ms),
bad answers by reason, and for each --pid the CPU of that process and all its descendants in microseconds per
call and per streamed token, and its resident memory. CPU per unit of work is the figure to compare: it does
not depend on how cores are shared. Pin the process under test to one core, the rest to another; interleave
the candidates; take medians. Calls made before and after the measured seconds are checked like the others and
counted in `asked` and `whole`; none is broken off at the end, so each of them has to stand in the books.
"""

import argparse
import asyncio
import collections
import itertools
import time
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

from bench.processes import tree_usage

LAST_ANSWERS = 120.0  # seconds that calls under way at the end may still take
MARK = b'"content":" fox"'
NONCE = "0" * 12
USER = "user-0000"


class Tally:
    def __init__(self):
        self.latencies, self.first_bytes, self.gaps = [], [], []
        self.tokens, self.bad, self.counting = 0, collections.Counter(), False
        self.asked = self.whole = 0


class Caller(asyncio.Protocol):
    """One connection; asks when told to by `ask()`, and again by itself in a closed loop."""

    def __init__(self, run):
        self.run, self.transport, self.busy = run, None, False

    def connection_made(self, transport):
        self.transport = transport
        if self.run.closed_loop:
            self.ask()

    def ask(self):
        self.parser, self.started = httptools.HttpResponseParser(self), time.perf_counter()
        self.first = self.last = None
        self.longest, self.seen, self.rest, self.tail, self.busy = 0.0, 0, b"", b"", True
        self.run.tally.asked += 1
        self.transport.write(self.run.request())

    def data_received(self, data):
        if self.run.read_rate:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(len(data) / self.run.read_rate, self.resume)
        self.parser.feed_data(data)

    def resume(self):
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def on_body(self, body):
        now = time.perf_counter()
        if self.first is None:
            self.first = now
        else:
            self.longest = max(self.longest, now - self.last)
        self.last = now
        if self.run.stream:
            text = self.rest + body
            fresh = text.count(MARK)
            self.seen += fresh
            self.rest = text[-(len(MARK) - 1) :]
            if self.run.tally.counting:
                self.run.tally.tokens += fresh
            self.tail = (self.tail + body)[-400:]
        else:
            self.tail += body

    def on_message_complete(self):
        tally, now = self.run.tally, time.perf_counter()
        if why := self.fault():
            tally.bad[why] += 1
        else:
            tally.whole += 1
            if tally.counting:
                tally.latencies.append(now - self.started)
                tally.first_bytes.append(self.first - self.started)
                tally.gaps.append(self.longest)
        self.busy = False
        if self.run.closed_loop and not self.run.over and not self.transport.is_closing():
            self.ask()

    def fault(self) -> str | None:
        status = self.parser.get_status_code()
        if status != 200:
            return f"status {status}"
        if self.run.stream:
            if self.seen != self.run.tokens:
                return "wrong token count"
            return None if self.tail.endswith(b"data: [DONE]\n\n") else "no [DONE]"
        try:
            answer = orjson.loads(self.tail)
            whole = (
                answer["usage"]["completion_tokens"] == self.run.tokens
                and answer["choices"][0]["message"]["content"]
            )
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return "broken body"
        return None if whole else "wrong token count"

    def connection_lost(self, exc):
        if self.busy:
            self.run.tally.bad["connection lost mid-call"] += 1
        self.busy = False
        self.run.callers.discard(self)
        if not self.run.over:
            self.run.reconnecting = asyncio.ensure_future(self.run.connect())


class Run:
    def __init__(self, options):
        self.url, self.stream, self.tokens = urlsplit(options.url), options.stream, options.tokens
        self.read_rate, self.closed_loop, self.over = options.read_rate, options.rate is None, False
        self.tally, self.callers, self.reconnecting = Tally(), set(), None
        # A number that no run before or after has (microseconds; no load makes a million calls a second).
        self.numbers = itertools.count(time.time_ns() // 1000 % 10**12)
        filler = "You are a video editing agent that plans cuts, captions and music. "
        system = (filler * (options.prompt_bytes // len(filler) + 1))[: options.prompt_bytes]
        body = {
            "model": options.model,
            "temperature": options.temperature,
            "max_tokens": options.tokens,
            "messages": [
                {"role": "system", "content": NONCE + system},
                {"role": "user", "content": "Write one caption for a clip of a cat jumping over a fence."},
            ],
        }
        if options.stream:
            body["stream"] = True
        if options.users:
            body["user"] = USER
        self.before, after = orjson.dumps(body).split(NONCE.encode(), 1)
        length = len(self.before) + len(NONCE) + len(after)
        users = [after.replace(USER.encode(), f"user-{n:04}".encode()) for n in range(options.users)]
        self.afters = itertools.cycle(users or [after])
        keys = itertools.cycle(options.key or ["sk-bench"])
        self.heads = itertools.cycle(
            [
                "\r\n".join(
                    [
                        f"POST {self.url.path} HTTP/1.1",
                        f"Host: {self.url.netloc}",
                        "Content-Type: application/json",
                        f"Content-Length: {length}",
                        f"Authorization: Bearer {next(keys)}",
                        *options.headers,
                        "",
                        "",
                    ]
                ).encode()
                for _ in options.key or [0]
            ]
        )

    def request(self) -> bytes:
        return next(self.heads) + self.before + b"%012d" % next(self.numbers) + next(self.afters)

    async def connect(self):
        _, caller = await asyncio.get_running_loop().create_connection(
            lambda: Caller(self), self.url.hostname, self.url.port
        )
        self.callers.add(caller)

    async def last_answers(self):
        deadline = time.perf_counter() + LAST_ANSWERS
        while any(caller.busy for caller in self.callers):
            if time.perf_counter() > deadline:
                self.tally.bad["no answer"] += sum(caller.busy for caller in self.callers)
                return
            await asyncio.sleep(0.01)

    async def open_loop(self, rate: float):
        began, sent = time.perf_counter(), 0
        while not self.over:
            due = int((time.perf_counter() - began) * rate)
            idle = [caller for caller in self.callers if not caller.busy]
            for caller in idle[: due - sent]:
                caller.ask()
            late = due - sent - len(idle)
            if late > 0 and self.tally.counting:
                self.tally.bad["no free connection at its time"] += late
            sent = due
            await asyncio.sleep(0.001)


def milliseconds(values, share):
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1000, 3) if values else None


async def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--pid", action="append", default=[], help="NAME=PID of a process to account for")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, help="open loop: calls/s")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-bytes", type=int, default=800)
    parser.add_argument("--read-rate", type=float, help="bytes/s that each connection reads")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--users", type=int, default=0, help="end users that the calls name in turn")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--key", action="append")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    options = parser.parse_args()
    groups = dict(item.split("=", 1) if "=" in item else ("server", item) for item in options.pid)
    run = Run(options)
    for _ in range(options.connections):
        await run.connect()
    pacer = asyncio.ensure_future(run.open_loop(options.rate)) if options.rate else None
    await asyncio.sleep(options.warmup)
    before = {name: tree_usage(int(pid)) for name, pid in groups.items()}
    run.tally.counting, began = True, time.perf_counter()
    await asyncio.sleep(options.seconds)
    run.tally.counting, took = False, time.perf_counter() - began
    after = {name: tree_usage(int(pid)) for name, pid in groups.items()}
    run.over = True
    if pacer:
        await pacer
    await run.last_answers()
    tally, done = run.tally, len(run.tally.latencies)
    cost = {}
    for name in groups:
        cpu = after[name][0] - before[name][0]
        cost[name] = {
            "cpu_us_per_call": round(cpu / done * 1e6, 1) if done else None,
            "cpu_us_per_token": round(cpu / tally.tokens * 1e6, 2) if tally.tokens else None,
            "cpu_share": round(cpu / took, 2),
            "rss_mb": round(after[name][1] / 2**20, 1),
        }
    print(
        orjson.dumps(
            {
                "calls_per_s": round(done / took, 1),
                "tokens_per_s": round(tally.tokens / took, 1),
                "latency_ms": {
                    "p50": milliseconds(tally.latencies, 0.5),
                    "p99": milliseconds(tally.latencies, 0.99),
                },
                "first_byte_ms": {
                    "p50": milliseconds(tally.first_bytes, 0.5),
                    "p99": milliseconds(tally.first_bytes, 0.99),
                },
                "longest_gap_ms": milliseconds(tally.gaps, 1) if run.stream else None,
                "calls": done,
                "asked": tally.asked,
                "whole": tally.whole,
                "bad": dict(tally.bad),
                "cost": cost,
            }
        ).decode()
    )


if __name__ == "__main__":
    uvloop.run(main())
