"""POST /v1/chat/completions (OpenAI's OpenAPI document)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.body import Edits
from api.lane.dialects.dialect import Ask, Dialect, refuse_media_addresses
from api.lane.dialects.shapes import check_message
from api.lane.stream import ChunkMeter, StreamMeter, has_finished

TEXT_PARTS = ("text", "refusal")


class OpenAIStreams(Dialect):
    """What chat completions and completions share: `stream_options`, choices, `[DONE]`."""

    cacheable = True

    def read(self, fields: dict[str, Any]) -> Ask:
        ask = super().read(fields)
        options = fields.get("stream_options")
        if options is not None and type(options) is not dict:
            raise InvalidRequest("'stream_options' must be an object.", "stream_options")
        shown = options.get("include_usage") if options else None
        if shown is not None and type(shown) is not bool:
            raise InvalidRequest("'include_usage' must be true or false.", "stream_options.include_usage")
        ask.shows_usage = bool(shown)
        return ask

    def edits(self, ask: Ask, cap: int, engine_model: str) -> Edits:
        edits = super().edits(ask, cap, engine_model)
        if ask.stream and not ask.shows_usage:
            edits.put_inside("stream_options", "include_usage", b"true")
        return edits

    def is_whole(self, answer: dict[str, Any]) -> bool:
        choices = answer.get("choices")
        return type(choices) is list and bool(choices) and all(has_finished(choice) for choice in choices)

    def meter(self, ask: Ask, *, fixes_created: bool) -> StreamMeter:
        return ChunkMeter(ask.choices, ask.shows_usage, fixes_created)


class ChatCompletions(OpenAIStreams):
    endpoint = "chat/completions"
    path = b"/v1/chat/completions"
    # n_predict is llama.cpp's own name, which would win over the others there.
    cap_fields = ("max_tokens", "max_completion_tokens", "n_predict")

    def check(self, fields: dict[str, Any]) -> None:
        messages = fields.get("messages")
        if type(messages) is not list or not messages:
            raise InvalidRequest(
                "'messages' must be a list of at least one message.", "messages", "missing_messages"
            )
        for number, message in enumerate(messages):
            check_message(message, number)
            if type(message.get("content")) is list:
                refuse_media_addresses(message["content"])

    def has_parts(self, fields: dict[str, Any]) -> bool:
        return any(type(message.get("content")) is list for message in fields["messages"])

    def refuse_media(self, fields: dict[str, Any]) -> None:
        for number, message in enumerate(fields["messages"]):
            content = message.get("content")
            if type(content) is list and any(
                type(part) is not dict or part.get("type") not in TEXT_PARTS for part in content
            ):
                raise InvalidRequest(
                    "This model reads text only.", f"messages[{number}].content", "unsupported_value"
                )
