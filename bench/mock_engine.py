"""A stand-in OpenAI-compatible engine for gateway benchmarks (never for product tests).

It answers POST /v1/chat/completions at once, or as a stream of `max_tokens` chunks `--gap` seconds
apart, byte for byte in the form vLLM 0.32 sends: role chunk, one delta per token, a finish chunk, a
usage chunk when `stream_options.include_usage` is set, then [DONE]. It speaks HTTP/1.1 on a raw asyncio
protocol, so that it costs far less than any gateway under test, and it stops producing while its peer
does not read. GET /count returns what it
served; POST /tokenize counts a token per four bytes of body. Needs: uvloop, httptools, orjson.

    python -m bench.mock_engine --port 9100 --gap 0.01
"""

import argparse
import asyncio
import functools

import httptools
import orjson
import uvloop

ID = "chatcmpl-0123456789abcdef0123456789abcdef"
WORD = " fox"


def event(payload: dict) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def delta(delta_: dict, finish: str | None = None, **more) -> dict:
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": 1764500000,
        "model": "mock",
        "choices": [
            {"index": 0, "delta": delta_, "logprobs": None, "finish_reason": finish, "token_ids": None}
        ],
        **more,
    }


ROLE = chunk(event(delta({"role": "assistant", "content": ""}, prompt_token_ids=None)))
TOKEN = chunk(event(delta({"content": WORD})))
FINISH = chunk(event(delta({}, "stop")))
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def usage(tokens: int) -> dict:
    return {
        "prompt_tokens": 212,
        "total_tokens": 212 + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def json_reply(payload: dict) -> bytes:
    body = orjson.dumps(payload)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    ) + body


@functools.lru_cache
def whole_answer(tokens: int) -> bytes:
    message = {"role": "assistant", "content": WORD * tokens, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    return json_reply(
        {
            "id": ID,
            "object": "chat.completion",
            "created": 1764500000,
            "model": "mock",
            "choices": [choice],
            "usage": usage(tokens),
        }
    )


CARD = {"id": "mock", "object": "model", "created": 1764500000, "owned_by": "vllm", "max_model_len": 65536}
METRICS = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
SERVICE = {
    b"/v1/models": json_reply({"object": "list", "data": [CARD]}),
    b"/version": json_reply({"version": "0.32.0"}),
    b"/metrics": b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
    % (len(METRICS), METRICS),
}


class Engine(asyncio.Protocol):
    gap = 0.01
    served = {"calls": 0, "streams": 0, "tokens": 0, "aborted": 0}

    def connection_made(self, transport):
        self.transport, self.parser = transport, httptools.HttpRequestParser(self)
        self.body, self.timer, self.left, self.paused = [], None, None, False

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_url(self, url):
        self.url = url

    def on_body(self, body):
        self.body.append(body)

    def on_message_complete(self):
        body, self.body = b"".join(self.body), []
        if self.url == b"/v1/chat/completions":
            self.chat(orjson.loads(body))
        elif self.url == b"/count":
            self.transport.write(json_reply(Engine.served))
        elif self.url == b"/tokenize":
            count = len(body) // 4
            self.transport.write(json_reply({"count": count, "max_model_len": 65536, "tokens": [0] * count}))
        else:
            self.transport.write(SERVICE.get(self.url) or json_reply({"status": "ok", "model_path": "mock"}))

    def chat(self, ask):
        want = ask.get("max_tokens") or ask.get("max_completion_tokens") or 32
        if not ask.get("stream"):
            Engine.served["calls"] += 1
            self.transport.write(whole_answer(want))
            return
        Engine.served["streams"] += 1
        self.left, self.want = want, want
        self.asked_usage = bool((ask.get("stream_options") or {}).get("include_usage"))
        self.transport.write(STREAM_HEAD + ROLE)
        self.wait()

    def wait(self):
        if not self.paused:
            self.timer = asyncio.get_running_loop().call_later(self.gap, self.tick)

    def tick(self):
        if self.left:
            self.left -= 1
            Engine.served["tokens"] += 1
            self.transport.write(TOKEN)
            self.wait()
            return
        tail = FINISH
        if self.asked_usage:
            tail += chunk(event({**delta({}), "choices": [], "usage": usage(self.want)}))
        self.left = self.timer = None
        self.transport.write(tail + DONE)

    def pause_writing(self):
        self.paused = True
        if self.timer:
            self.timer.cancel()

    def resume_writing(self):
        self.paused = False
        if self.left is not None:
            self.wait()

    def connection_lost(self, exc):
        if self.left is not None:
            Engine.served["aborted"] += 1
        if self.timer:
            self.timer.cancel()


async def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between streamed tokens")
    options = parser.parse_args()
    Engine.gap = options.gap
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", options.port, backlog=8192)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
