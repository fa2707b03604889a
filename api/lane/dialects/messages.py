"""POST /v1/messages (Anthropic's Messages, as its SDK states it)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.dialects.dialect import Ask, Dialect, end_user, one_output, refuse_media_addresses
from api.lane.stream import StreamMeter
from api.lane.typed_stream import MessageMeter
from api.lane.usage import Usage, message_usage


class Messages(Dialect):
    endpoint = "messages"
    path = b"/v1/messages"
    cap_fields = ("max_tokens",)
    anthropic = True

    def check(self, fields: dict[str, Any]) -> None:
        if type(fields.get("messages")) is not list or not fields["messages"]:
            raise InvalidRequest(
                "'messages' must be a list of at least one message.", "messages", "missing_messages"
            )
        if fields.get("max_tokens") is None:
            raise InvalidRequest("'max_tokens' is required.", "max_tokens", "missing_max_tokens")
        for message in fields["messages"]:
            if type(message) is dict and type(message.get("content")) is list:
                refuse_media_addresses(message["content"])

    def choices(self, fields: dict[str, Any]) -> int:
        return one_output(fields)

    def end_user(self, fields: dict[str, Any]) -> str | None:
        metadata = fields.get("metadata")
        if type(metadata) is dict and metadata.get("user_id") is not None:
            return end_user(metadata["user_id"], "metadata.user_id")
        return None

    def usage(self, answer: dict[str, Any]) -> Usage | None:
        return message_usage(answer.get("usage"))

    def is_whole(self, answer: dict[str, Any]) -> bool:
        return bool(answer.get("stop_reason"))

    def meter(self, ask: Ask, *, fixes_created: bool) -> StreamMeter:
        return MessageMeter()
