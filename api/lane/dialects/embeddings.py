"""POST /v1/embeddings (OpenAI's OpenAPI document)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.dialects.dialect import Dialect, count_prompts


class Embeddings(Dialect):
    endpoint = "embeddings"
    path = b"/v1/embeddings"
    streams = False

    def check(self, fields: dict[str, Any]) -> None:
        if "input" not in fields and "messages" not in fields:
            raise InvalidRequest("'input' must be a text or a list of texts.", "input", "missing_input")

    def prompts(self, fields: dict[str, Any]) -> int:
        return count_prompts(fields.get("input"), "input")

    def choices(self, fields: dict[str, Any]) -> int:
        return 0
