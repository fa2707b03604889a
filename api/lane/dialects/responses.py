"""POST /v1/responses (OpenAI's OpenAPI document)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.dialects.dialect import Ask, Dialect, one_output, refuse_media_addresses
from api.lane.stream import StreamMeter
from api.lane.typed_stream import ResponseMeter
from api.lane.usage import Usage, response_usage


class Responses(Dialect):
    endpoint = "responses"
    path = b"/v1/responses"
    cap_fields = ("max_output_tokens",)

    def check(self, fields: dict[str, Any]) -> None:
        if type(fields.get("input")) not in (str, list):
            raise InvalidRequest("'input' must be a text or a list.", "input", "missing_input")
        if type(fields["input"]) is list:
            refuse_media_addresses(fields["input"])
        for name in ("previous_response_id", "conversation"):
            if fields.get(name) is not None:
                # What it adds to the prompt stands at one engine only, and nobody could say what it may cost.
                raise InvalidRequest(f"'{name}' is not served here; send the whole input.", name)
        if fields.get("background"):
            raise InvalidRequest("'background' is not served here; leave it out.", "background")

    def choices(self, fields: dict[str, Any]) -> int:
        return one_output(fields)

    def usage(self, answer: dict[str, Any]) -> Usage | None:
        return response_usage(answer.get("usage"))

    def is_whole(self, answer: dict[str, Any]) -> bool:
        return answer.get("status") in ("completed", "incomplete")

    def meter(self, ask: Ask, *, fixes_created: bool) -> StreamMeter:
        return ResponseMeter()
