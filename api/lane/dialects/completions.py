"""POST /v1/completions (OpenAI's OpenAPI document)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.dialects.chat import OpenAIStreams
from api.lane.dialects.dialect import CHOICES_MAX, count_prompts, whole_number


class Completions(OpenAIStreams):
    endpoint = "completions"
    path = b"/v1/completions"
    cap_fields = ("max_tokens", "n_predict")

    def check(self, fields: dict[str, Any]) -> None:
        prompt = fields.get("prompt")
        if type(prompt) is not str and (type(prompt) is not list or not prompt):
            raise InvalidRequest("'prompt' must be a text or a list of texts.", "prompt", "missing_prompt")
        if (whole_number(fields, "best_of", CHOICES_MAX) or 1) > (
            whole_number(fields, "n", CHOICES_MAX) or 1
        ):
            # Engines differ in it: some make the others and do not count them, some know no such thing.
            raise InvalidRequest("'best_of' above 'n' is not served.", "best_of", "unsupported_value")

    def prompts(self, fields: dict[str, Any]) -> int:
        return count_prompts(fields["prompt"], "prompt")

    def choices(self, fields: dict[str, Any]) -> int:
        return super().choices(fields) * self.prompts(fields)
