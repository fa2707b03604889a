"""Types of the fields that OpenAI's API gives a type, so that a wrong one is named before an engine sees it.

Only what the API itself fixes stands here; fields that are not named pass as they are.
"""

from typing import Any

from api.errors import InvalidRequest

NUMBER, WHOLE, SWITCH, TEXT, LIST, OBJECT = (
    "a number",
    "a whole number",
    "true or false",
    "a text",
    "a list",
    "an object",
)
TYPES: dict[str, tuple[type, ...]] = {
    NUMBER: (int, float),
    WHOLE: (int,),
    SWITCH: (bool,),
    TEXT: (str,),
    LIST: (list,),
    OBJECT: (dict,),
}
FIELDS: dict[str, tuple[str, ...]] = {
    "frequency_penalty": (NUMBER,),
    "presence_penalty": (NUMBER,),
    "temperature": (NUMBER,),
    "top_p": (NUMBER,),
    "seed": (WHOLE,),
    "top_logprobs": (WHOLE,),
    "logit_bias": (OBJECT,),
    "metadata": (OBJECT,),
    "parallel_tool_calls": (SWITCH,),
    "response_format": (OBJECT,),
    "stop": (TEXT, LIST),
    "store": (SWITCH,),
    "tool_choice": (TEXT, OBJECT),
    "tools": (LIST,),
}
CHECKED = frozenset(FIELDS)


def check_shapes(fields: dict[str, Any]) -> None:
    """Raises InvalidRequest that names the first field of a wrong type; null is always allowed."""
    for name in CHECKED & fields.keys():
        value = fields[name]
        if value is not None and not any(type(value) in TYPES[kind] for kind in FIELDS[name]):
            raise InvalidRequest(f"'{name}' must be {' or '.join(FIELDS[name])}.", name, "invalid_type")


def check_message(message: object, number: int) -> None:
    """One of a chat's messages: a role, and content that is a text, a list of parts, or null."""
    name = f"messages[{number}]"
    if type(message) is not dict:
        raise InvalidRequest(f"'{name}' must be an object.", name, "invalid_type")
    if type(message.get("role")) is not str:
        raise InvalidRequest(
            f"'{name}.role' must be a text, such as \"user\".", f"{name}.role", "invalid_type"
        )
    content = message.get("content")
    if content is not None and type(content) is not str and type(content) is not list:
        raise InvalidRequest(
            f"'{name}.content' must be a text, a list of parts, or null.", f"{name}.content", "invalid_type"
        )
