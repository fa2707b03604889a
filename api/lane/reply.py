"""The bytes of answers: heads, chunks, errors."""

import http

from api.errors import GatewayError, anthropic_body, error_headers, openai_body
from api.lane.dialects import Dialect

STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP/1.1's chunked coding (RFC 9112, 7.1). `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_head(common: bytes, request_id: str, extra: bytes, *, chunked: bool) -> bytes:
    """The head of a streamed answer. `common` and `extra` are whole header lines."""
    framing = b"transfer-encoding: chunked\r\n" if chunked else b"connection: close\r\n"
    return (
        b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
        b"x-accel-buffering: no\r\nx-request-id: %b\r\n%b%b\r\n"
    ) % (common, request_id.encode(), extra, framing)


def json_reply(
    common: bytes, status: int, body: bytes, request_id: str, extra: bytes, *, keep_alive: bool
) -> bytes:
    """A whole answer with a JSON body."""
    closing = b"" if keep_alive else b"connection: close\r\n"
    return (b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n%b") % (
        STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
        common,
        len(body),
        request_id.encode(),
        extra,
        closing,
        body,
    )


def error_body(error: GatewayError, dialect: Dialect | None, request_id: str) -> bytes:
    if dialect is not None and dialect.anthropic:
        return anthropic_body(error, request_id)
    return openai_body(error)


def error_extra(error: GatewayError) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in error_headers(error))


def error_event(error: GatewayError, dialect: Dialect, request_id: str) -> bytes:
    """An error inside a stream that has begun, in the wire's own form."""
    body = error_body(error, dialect, request_id)
    if dialect.endpoint == "chat/completions" or dialect.endpoint == "completions":
        return b"data: " + body + b"\n\n"
    return b"event: error\ndata: " + body + b"\n\n"
