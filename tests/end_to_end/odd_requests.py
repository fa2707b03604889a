"""Requests that are malformed or odd, made from a seed; and what a strict parser (h11) makes of them."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import h11

from tests.caller import in_chunks

CHUNKED = b"Transfer-Encoding: chunked"


@dataclass
class Draft:
    """A good request in parts, for one mutation to spoil."""

    line: bytes
    headers: list[bytes]
    body: bytes
    raw_body: bytes | None = None  # as it goes over the wire, when that is not `body`

    def raw(self) -> bytes:
        body = self.body if self.raw_body is None else self.raw_body
        return b"\r\n".join([self.line, *self.headers]) + b"\r\n\r\n" + body

    def without_length(self) -> list[bytes]:
        return [header for header in self.headers if not header.lower().startswith(b"content-length")]


Mutation = Callable[[Draft, random.Random], bytes]


def with_length(draft: Draft, *values: bytes) -> bytes:
    draft.headers = draft.without_length() + [b"Content-Length:" + value for value in values]
    return draft.raw()


def lengths(draft: Draft, chance: random.Random) -> bytes:
    exact = len(draft.body)
    odd = [
        *(b" %d" % n for n in (exact - 1, exact + 1, 0, -exact, 1 << 64, (1 << 64) + exact)),
        b" +%d" % exact, b" 0%d" % exact, b" %x" % exact, b" 0x%x" % exact, b" %d, %d" % (exact, exact),
        b" %d %d" % (exact, exact), b" %d.0" % exact, b"", b" ", b"\t%d\t" % exact, b" %d\x00" % exact,
        b" %d;" % exact, b" \xc2\xb2", b" %de0" % exact, b" 1_0",
    ]  # fmt: skip
    good = b" %d" % exact
    return with_length(
        draft, *chance.choice([[chance.choice(odd)], [good, chance.choice(odd)], [good, good]])
    )


def codings(draft: Draft, chance: random.Random) -> bytes:
    odd = [
        b"Chunked", b"CHUNKED", b" chunked ", b"\tchunked", b"xchunked", b"chunkedx", b"gzip, chunked",
        b"chunked, gzip", b"identity", b"chunked, chunked", b"chunked;q=1", b"\x0bchunked", b"",
        b"chunked\x00", b'"chunked"',
    ]  # fmt: skip
    framed = in_chunks(draft.body, (7, 30))
    if chance.random() < 0.3:  # beside a length
        draft.headers.append(CHUNKED)
        draft.raw_body = chance.choice([framed, draft.body])
    else:
        draft.headers = draft.without_length()
        draft.headers += [
            b"Transfer-Encoding: " + chance.choice(odd) for _ in range(chance.choice([1, 1, 2]))
        ]
        draft.raw_body = framed
    return draft.raw()


def chunks(draft: Draft, chance: random.Random) -> bytes:
    draft.headers = [*draft.without_length(), CHUNKED]
    body = draft.body
    size = b"%x" % len(body)
    sizes = [
        size.upper(), b"000" + size, b"0x" + size, size + b";ext=1", size + b" ", b" " + size,
        size + b";" + b"x" * 9000, b"+" + size, b"-" + size, b"%x" % (len(body) - 1),
        b"%x" % (len(body) + 1), b"1" + b"0" * 16, size + b"\x00", size + b"\n", b"", b"g", size + b"\t;a",
    ]  # fmt: skip
    after = chance.choice([b"\r\n", b"\r\n", b"\n", b"", b"\r", b"xx"])
    last = chance.choice(
        [
            b"0\r\n\r\n", b"0\r\n\r\n", b"00\r\n\r\n", b"0\n\n", b"0\r\nX-T: 1\r\n\r\n",
            b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\n\x00\r\n\r\n", b"0\r\n",
        ]
    )  # fmt: skip
    draft.raw_body = chance.choice([size, *sizes]) + chance.choice([b"\r\n", b"\n"]) + body + after + last
    return draft.raw()


def header_lines(draft: Draft, chance: random.Random) -> bytes:
    odd = [
        b"Host: other", b"Host:", b"x y: 1", b"x : 1", b" x: 1", b"x:\x00", b"x: \x7f", b"x: \xff",
        b"x: a\rb", b"x: a\nb: c", b"no colon", b": nameless", b"x: a\r\n folded", b"X" * 70_000 + b": 1",
        b"x: " + b"y" * 70_000, b"x\x00: 1", b"", b"Expect: 200-maybe",
        b"Connection: upgrade\r\nUpgrade: websocket", b"Connection: close, keep-alive", b"x(y): 1",
        b"Content-Encoding: gzip", b"Trailer: x", b"TE: chunked",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
    ]  # fmt: skip
    draft.headers.insert(chance.randrange(len(draft.headers) + 1), chance.choice(odd))
    if chance.random() < 0.2:
        draft.headers = [header for header in draft.headers if not header.startswith(b"Host: g")]
    return draft.raw()


def request_line(draft: Draft, chance: random.Random) -> bytes:
    path = b"/v1/chat/completions"
    odd = [
        b"POST %b HTTP/1.0", b"POST %b HTTP/1.2", b"POST %b HTTP/2.0", b"POST %b HTTP/0.9", b"POST %b",
        b"post %b HTTP/1.1", b"POST  %b HTTP/1.1", b"POST %b  HTTP/1.1", b"POST\t%b HTTP/1.1",
        b" POST %b HTTP/1.1", b"POST %b HTTP/1.1 ", b"\r\nPOST %b HTTP/1.1", b"POST %b#x HTTP/1.1",
        b"POST %b\x00 HTTP/1.1", b"POST %b\xff HTTP/1.1", b"P\xd6ST %b HTTP/1.1",
        b"POST http://other%b HTTP/1.1", b"POST other%b HTTP/1.1", b"POST /.%b HTTP/1.1",
        b"POST /%b HTTP/1.1", b"POST %b/ HTTP/1.1", b"POST %b;a HTTP/1.1", b"PRI %b HTTP/1.1",
        b"CONNECT %b HTTP/1.1", b"POST %b http/1.1", b"POST %b?" + b"q" * 70_000 + b" HTTP/1.1",
    ]  # fmt: skip
    draft.line = chance.choice(odd) % path
    return draft.raw()


def any_byte(draft: Draft, chance: random.Random) -> bytes:
    raw = bytearray(draft.raw())
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(raw))
        kind = chance.randrange(3)
        if kind == 0:
            raw[at] = chance.randrange(256)
        elif kind == 1:
            raw.insert(at, chance.choice([0, 9, 10, 13, 32, 34, 58, 255, chance.randrange(256)]))
        else:
            del raw[at]
    return bytes(raw)


def nothing(draft: Draft, chance: random.Random) -> bytes:
    return draft.raw()


MUTATIONS: list[Mutation] = [
    lengths,
    codings,
    chunks,
    header_lines,
    request_line,
    any_byte,
    any_byte,
    nothing,
]


def make(number: int, seed: int, key: str) -> bytes:
    """The odd request of this number. Its body tells the number, and needs no edit by the gateway."""
    chance = random.Random(f"{seed}-{number}")
    body = b'{"model":"scripted","max_tokens":3,"messages":[{"role":"user","content":"odd %d"}]}' % number
    headers = [b"Host: g", b"Authorization: Bearer " + key.encode(), b"Content-Length: %d" % len(body)]
    return chance.choice(MUTATIONS)(Draft(b"POST /v1/chat/completions HTTP/1.1", headers, body), chance)


def as_h11_reads_it(raw: bytes) -> bytes | None:
    """The body of the first request; None when it is not whole or no HTTP."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    # RFC 9112 lets servers overlook an empty line before the request (2.2) and more than one space in it (3).
    line, end, rest = raw.removeprefix(b"\r\n").partition(b"\r\n")
    connection.receive_data(re.sub(rb"(?<=[^ ]) +(?=[^ ])", b" ", line) + end + rest)
    body = b""
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return body
    except h11.RemoteProtocolError:
        return None
