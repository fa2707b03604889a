"""What a caller is told when a call is refused: one class per refusal, in OpenAI's or Anthropic's shape.

Shapes: OpenAI's OpenAPI document (`error` with `message`, `type`, `param`, `code`, all present) and the
Anthropic SDK's (`{"type": "error", "error": {"type", "message"}, "request_id"}`). Bodies are ASCII: a lone
surrogate that came in with the caller's text goes out as an escape instead of breaking the reply.
"""

import json
from collections.abc import Iterator

QUOTED_MAX = 64  # characters of a caller's own text that an error message may repeat

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class GatewayError(Exception):
    """A refusal as the caller sees it.

    status: HTTP status. type, code, param: OpenAI's fields of those names. message: one sentence that says
    what to do; it never holds a key, a digest, an address, a file's path or another exception's text.
    retry_after: whole seconds, at least 1, or None where the caller must act first.
    should_retry: sent as `x-should-retry`, which overrides the SDK's own rule; None leaves the rule alone.
    """

    def __init__(
        self,
        status: int,
        type: str,
        code: str | None,
        message: str,
        param: str | None = None,
        retry_after: int | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.should_retry = should_retry


class InvalidRequest(GatewayError):
    """400: the request itself is wrong; `param` names the field."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(400, "invalid_request_error", code, message, param)


class InvalidKey(GatewayError):
    """401: no key, or one that is unknown, expired or revoked. All look alike: nothing can be learnt."""

    def __init__(self) -> None:
        super().__init__(
            401,
            "invalid_request_error",
            "invalid_api_key",
            "No valid API key was given. Send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
        )


class NotPermitted(GatewayError):
    """403: the key is good, but not for this."""

    def __init__(
        self, message: str, code: str = "insufficient_permissions", param: str | None = None
    ) -> None:
        super().__init__(403, "permission_error", code, message, param)


class NotFound(GatewayError):
    """404: no such path or thing."""

    def __init__(self, message: str, param: str | None = None, code: str | None = "not_found") -> None:
        super().__init__(404, "invalid_request_error", code, message, param)


class ModelNotFound(NotFound):
    """404: no model of that name."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{quoted(model)}' does not exist here. GET /v1/models lists those that do.",
            "model",
            "model_not_found",
        )


class MethodNotAllowed(GatewayError):
    """405: the path exists, the method does not."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            405,
            "invalid_request_error",
            "method_not_allowed",
            f"{quoted(method)} is not allowed on {quoted(path)}.",
        )


class Conflict(GatewayError):
    """409: the name is taken, or the change meets another."""

    def __init__(self, message: str, param: str | None = None, code: str = "already_exists") -> None:
        super().__init__(409, "invalid_request_error", code, message, param, should_retry=False)


class BodyTooLarge(GatewayError):
    """413: the body is longer than the server takes."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            413,
            "invalid_request_error",
            "request_too_large",
            f"The body is longer than {limit} bytes; send less.",
        )


class HeadTooLarge(GatewayError):
    """431: the headers are longer, or more, than the server reads."""

    def __init__(self) -> None:
        super().__init__(
            431, "invalid_request_error", "headers_too_large", "The headers are too large; send fewer."
        )


class UrlTooLong(GatewayError):
    """414: the address is longer than the server reads."""

    def __init__(self) -> None:
        super().__init__(414, "invalid_request_error", "url_too_long", "The address is too long; shorten it.")


class RequestTimedOut(GatewayError):
    """408: the rest of the request did not come in time."""

    def __init__(self) -> None:
        super().__init__(
            408,
            "invalid_request_error",
            "request_timeout",
            "The rest of the request did not come; send it again.",
        )


class InternalError(GatewayError):
    """500: our own fault. What happened stands in the log under the request id, not in the reply."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "server_error",
            "internal_error",
            "The gateway failed on this request; try again, and name the x-request-id if it goes on.",
        )


class Unavailable(GatewayError):
    """503: something behind the gateway is away for now."""

    def __init__(self, message: str, code: str = "service_unavailable", retry_after: int = 1) -> None:
        super().__init__(503, "service_unavailable_error", code, message, retry_after=retry_after)


class DirectoryUnavailable(Unavailable):
    """503: the key is not known here and the database that could tell is away."""

    def __init__(self) -> None:
        super().__init__("Keys cannot be checked at the moment; try again shortly.", "key_check_unavailable")


class DatabaseUnavailable(Unavailable):
    """503: an admin route needs the database, and it is away."""

    def __init__(self) -> None:
        super().__init__(
            "The database cannot be reached at the moment; try again shortly.", "database_unavailable"
        )


def quoted(text: str) -> str:
    """The caller's own text, cut to QUOTED_MAX characters and free of control characters, for a message."""
    short = text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 1] + "…"
    return "".join(c if c.isprintable() else "�" for c in short)


def openai_body(error: GatewayError) -> bytes:
    """The reply body in OpenAI's shape. ASCII JSON, all four keys present."""
    return json.dumps(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}},
        separators=(",", ":"),
    ).encode("ascii")


def anthropic_body(error: GatewayError, request_id: str) -> bytes:
    """The reply body in Anthropic's shape, for /v1/messages. ASCII JSON; the type follows from the status."""
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return json.dumps(
        {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id},
        separators=(",", ":"),
    ).encode("ascii")


def error_headers(error: GatewayError) -> Iterator[tuple[bytes, bytes]]:
    """The headers that belong to the refusal: Retry-After (whole seconds) and x-should-retry."""
    if error.retry_after is not None:
        yield b"retry-after", b"%d" % max(1, error.retry_after)
    if error.should_retry is not None:
        yield b"x-should-retry", b"true" if error.should_retry else b"false"
    if error.status == 401:
        yield b"www-authenticate", b"Bearer"
