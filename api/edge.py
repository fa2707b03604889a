"""Around every FastAPI route: request id, limit of the body, one log line, the last net for errors.

The lane does not pass here: it keeps these rules itself.
"""

import logging
import time
import traceback

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.keys import redacted
from api.errors import (
    BodyTooLarge,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    anthropic_body,
    error_headers,
    openai_body,
    quoted,
)
from ledger.ids import new_id

log = logging.getLogger("api.requests")

BODY_MAX = 1 << 20  # bytes; what the admin routes take is far smaller
ANTHROPIC_PATH = "/v1/messages"


class Edge:
    """ASGI middleware, the outermost of ours."""

    def __init__(self, app: ASGIApp, body_max: int = BODY_MAX) -> None:
        self.app = app
        self.body_max = body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        # HEAD is answered as GET is; the server, which knows better, leaves the body out.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        request_id = new_id()
        asked.setdefault("state", {})["request_id"] = request_id
        status = 0
        got = 0

        async def counted_receive() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self.body_max:
                raise BodyTooLarge(self.body_max)
            return message

        async def marked_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if _speaks_anthropic(scope["path"]):
                    headers["request-id"] = request_id
            await send(message)

        try:
            if _content_length(scope) > self.body_max:
                raise BodyTooLarge(self.body_max)
            await self.app(asked, counted_receive, marked_send)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            if not isinstance(error, GatewayError):
                log.error("%s failed: %s", request_id, whereabouts(error))
                error = InternalError()
            if not status:
                await error_response(Request(asked), error)(asked, receive, marked_send)
        finally:
            took = (time.monotonic() - began) * 1000
            log.info("%s %s %d %.1f ms %s", scope["method"], _logged_path(scope), status, took, request_id)


def error_response(request: Request, error: GatewayError) -> Response:
    """The refusal in the shape of the path that was asked."""
    if _speaks_anthropic(request.url.path):
        body = anthropic_body(error, request.state.request_id)
    else:
        body = openai_body(error)
    response = Response(body, error.status, media_type="application/json")
    response.raw_headers.extend(error_headers(error))
    if error.status == 413:
        # The rest of the body is not read, so nothing else can come on this connection.
        response.headers["connection"] = "close"
    return response


def refusal_of(request: Request, error: HTTPException) -> GatewayError:
    """What the framework refuses by itself (no such path, method, body), in our words."""
    if error.status_code == 404:
        asked = f"{request.method} {request.url.path}"
        return NotFound(f"There is nothing at '{quoted(redacted(asked))}'.", code="unknown_path")
    if error.status_code == 405:
        return MethodNotAllowed(request.method, redacted(request.url.path))
    if error.status_code < 500:
        return GatewayError(
            error.status_code,
            "invalid_request_error",
            "invalid_value",
            "The request could not be understood.",
        )
    return InternalError()


def whereabouts(error: BaseException) -> str:
    """Type and place of an error for the log. Its text stays out: it may hold a key, a row or an address."""
    frames = [
        f"{frame.f_globals.get('__name__')}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return f"{type(error).__name__} at {' < '.join(reversed(frames[-6:]))}"


def _speaks_anthropic(path: str) -> bool:
    return path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:18])
    return 0


def _logged_path(scope: Scope) -> str:
    # Without the query, where callers put what they should not; as sent, so that no line break gets in.
    raw: bytes = scope.get("raw_path") or b""
    return redacted(raw.partition(b"?")[0].decode("ascii", "replace"))
