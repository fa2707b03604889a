"""Schemas of the lane's requests and answers, for the OpenAPI document only.

They describe what the gateway reads; everything else in a body passes to the engine as it is, so every
object is open.
"""

from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LanePath:
    """One POST path under /v1. request and response name schemas; stream says what a streamed answer is."""

    endpoint: str
    summary: str
    request: str
    response: str
    stream: str | None
    example: dict[str, Any] = field(default_factory=dict)


def _open(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": True}


def _string(description: str = "") -> Schema:
    return {"type": "string", "description": description} if description else {"type": "string"}


def _integer(description: str, minimum: int = 0) -> Schema:
    return {"type": "integer", "minimum": minimum, "description": description}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_MODEL = _string("One of GET /v1/models.")
_USER = _string("The caller's own user, at most 64 bytes: limits per end user count by it.")
_STREAM = {"type": "boolean", "default": False}
_STREAM_OPTIONS = _open(
    [], include_usage={"type": "boolean", "description": "One more chunk with the usage."}
)
_CHUNKS = (
    "Server-sent events: `data: {chunk}` each, then `data: [DONE]`; an error event ends a broken stream."
)
_EVENTS = (
    "Server-sent events with `event:` lines, in the API's own order; an error event ends a broken stream."
)
_NULLABLE_STRING: Schema = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_HELLO = [{"role": "user", "content": "Say hello."}]

_TOKENS = _integer("Most tokens to generate; capped at the model's own default when larger or left out.", 1)
_COMMON: dict[str, Schema] = {
    "model": _MODEL,
    "stream": _STREAM,
    "stream_options": _STREAM_OPTIONS,
    "max_tokens": _TOKENS,
    "n": _integer("Choices.", 1),
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_string(), _list(_string())]},
    "user": _USER,
}

SCHEMAS: dict[str, Schema] = {
    "Error": _open(
        ["error"],
        error=_open(
            ["message", "type", "param", "code"],
            message=_string("One sentence that says what to do."),
            type=_string(),
            param=_NULLABLE_STRING,
            code=_NULLABLE_STRING,
        ),
    ),
    "AnthropicError": _open(
        ["type", "error", "request_id"],
        type={"const": "error"},
        error=_open(["type", "message"], type=_string(), message=_string()),
        request_id=_string(),
    ),
    "Usage": _open(
        ["prompt_tokens", "completion_tokens", "total_tokens"],
        prompt_tokens=_integer("Cached ones included."),
        completion_tokens=_integer("Reasoning included."),
        total_tokens=_integer("Their sum."),
        prompt_tokens_details=_open([], cached_tokens=_integer("Read from the engine's prefix cache.")),
        completion_tokens_details=_open([], reasoning_tokens=_integer("Part of completion_tokens.")),
    ),
    "ChatMessage": _open(
        ["role"],
        role=_string("system, developer, user, assistant or tool"),
        content={"anyOf": [_string(), _list({"type": "object"}), {"type": "null"}]},
        tool_calls=_list({"type": "object"}),
    ),
    "ChatCompletionRequest": _open(
        ["model", "messages"],
        messages=_list(_ref("ChatMessage")),
        max_completion_tokens=_TOKENS,
        tools=_list({"type": "object"}),
        tool_choice={},
        response_format={"type": "object"},
        safety_identifier=_USER,
        **_COMMON,
    ),
    "ChatCompletion": _open(
        ["id", "object", "created", "model", "choices"],
        id=_string(),
        object={"const": "chat.completion"},
        created=_integer("Seconds since the epoch."),
        model=_MODEL,
        choices=_list(
            _open(
                ["index", "message", "finish_reason"],
                index=_integer("From 0."),
                message=_ref("ChatMessage"),
                finish_reason=_NULLABLE_STRING,
            )
        ),
        usage=_ref("Usage"),
    ),
    "CompletionRequest": _open(
        ["model", "prompt"],
        prompt={"anyOf": [_string(), _list(_string()), _list({"type": "integer"})]},
        **_COMMON,
    ),
    "Completion": _open(
        ["id", "object", "created", "model", "choices"],
        id=_string(),
        object={"const": "text_completion"},
        created=_integer("Seconds since the epoch."),
        model=_MODEL,
        choices=_list(
            _open(
                ["index", "text", "finish_reason"],
                index=_integer("From 0."),
                text=_string(),
                finish_reason=_NULLABLE_STRING,
            )
        ),
        usage=_ref("Usage"),
    ),
    "EmbeddingRequest": _open(
        ["model", "input"],
        model=_MODEL,
        input={"anyOf": [_string(), _list(_string()), _list({"type": "integer"})]},
        encoding_format=_string("float or base64"),
        dimensions=_integer("Of the vector.", 1),
        user=_USER,
    ),
    "Embeddings": _open(
        ["object", "data", "model", "usage"],
        object={"const": "list"},
        data=_list(_open(["index", "embedding"], index=_integer("From 0."), embedding={})),
        model=_MODEL,
        usage=_ref("Usage"),
    ),
    "ResponseRequest": _open(
        ["model", "input"],
        model=_MODEL,
        input={"anyOf": [_string(), _list({"type": "object"})]},
        instructions=_NULLABLE_STRING,
        max_output_tokens=_TOKENS,
        stream=_STREAM,
        tools=_list({"type": "object"}),
        user=_USER,
        safety_identifier=_USER,
    ),
    "Response": _open(
        ["id", "object", "created_at", "model", "output", "status"],
        id=_string(),
        object={"const": "response"},
        created_at=_integer("Seconds since the epoch."),
        model=_MODEL,
        status=_string(),
        output=_list({"type": "object"}),
        usage=_open(
            ["input_tokens", "output_tokens", "total_tokens"],
            input_tokens=_integer("Cached ones included."),
            output_tokens=_integer("Reasoning included."),
            total_tokens=_integer("Their sum."),
        ),
    ),
    "MessageRequest": _open(
        ["model", "messages", "max_tokens"],
        model=_MODEL,
        messages=_list(_open(["role", "content"], role=_string("user or assistant"), content={})),
        max_tokens=_TOKENS,
        system={"anyOf": [_string(), _list({"type": "object"})]},
        stream=_STREAM,
        tools=_list({"type": "object"}),
        metadata=_open([], user_id=_USER),
    ),
    "Message": _open(
        ["id", "type", "role", "content", "model", "stop_reason", "usage"],
        id=_string(),
        type={"const": "message"},
        role={"const": "assistant"},
        content=_list({"type": "object"}),
        model=_MODEL,
        stop_reason=_NULLABLE_STRING,
        usage=_open(
            ["input_tokens", "output_tokens"],
            input_tokens=_integer("Without cached ones."),
            output_tokens=_integer("Of the answer."),
        ),
    ),
}

LANE = (
    LanePath(
        "chat/completions",
        "Chat, in OpenAI's shape",
        "ChatCompletionRequest",
        "ChatCompletion",
        _CHUNKS,
        {"model": "smollm2", "messages": _HELLO},
    ),
    LanePath(
        "completions",
        "Continue a text",
        "CompletionRequest",
        "Completion",
        _CHUNKS,
        {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 32},
    ),
    LanePath(
        "embeddings",
        "Vectors of texts, on engines that have them",
        "EmbeddingRequest",
        "Embeddings",
        None,
        {"model": "embedder", "input": "A text."},
    ),
    LanePath(
        "responses",
        "OpenAI's Responses API, on engines that have it",
        "ResponseRequest",
        "Response",
        _EVENTS,
        {"model": "smollm2", "input": "Say hello."},
    ),
    LanePath(
        "messages",
        "Anthropic's Messages API, on engines that have it",
        "MessageRequest",
        "Message",
        _EVENTS,
        {"model": "smollm2", "max_tokens": 64, "messages": _HELLO},
    ),
)
