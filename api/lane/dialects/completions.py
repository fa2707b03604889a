"""POST /v1/completions (OpenAI's OpenAPI document)."""

from typing import Any

from api.errors import InvalidRequest
from api.lane.dialects.chat import OpenAIStreams
from api.lane.dialects.dialect import CHOICES_MAX, whole_number

PROMPTS_MAX = 1024


class Completions(OpenAIStreams):
    endpoint = "completions"
    path = b"/v1/completions"
    cap_fields = ("max_tokens", "n_predict")

    def check(self, fields: dict[str, Any]) -> None:
        prompt = fields.get("prompt")
        if type(prompt) is not str and (
            type(prompt) is not list or not 0 < len(prompt) <= PROMPTS_MAX * 1024
        ):
            raise InvalidRequest("'prompt' must be a text or a list of texts.", "prompt", "missing_prompt")

    def choices(self, fields: dict[str, Any]) -> int:
        outputs = max(super().choices(fields), whole_number(fields, "best_of", CHOICES_MAX) or 1)
        prompt = fields.get("prompt")
        # A list of numbers is one prompt, given as tokens.
        if type(prompt) is list and type(prompt[0]) is not int:
            if len(prompt) > PROMPTS_MAX:
                raise InvalidRequest(f"'prompt' must hold at most {PROMPTS_MAX} texts.", "prompt")
            outputs *= len(prompt)
        return outputs
