"""What the lane must know of one wire: what a body asks for, where usage stands, when an answer is whole."""

from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from api.errors import InvalidRequest
from api.lane.body import Edits
from api.lane.dialects.shapes import check_shapes
from api.lane.stream import StreamMeter
from api.lane.usage import Usage, openai_usage

CHOICES_MAX = 128
PROMPTS_MAX = 2048
END_USER_BYTES = 64
INT_MAX = 2**31 - 1
# Names of an output limit somewhere; one that a wire does not have would still reach an engine that knows it.
CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
# Never the caller's own: they would reach into the engine's scheduling and its shared prefix cache.
RESERVED = ("cache_salt", "priority")


@dataclass(slots=True)
class Ask:
    """What a call asks for, as far as the gateway must know. `cap`: the caller's output limit in tokens."""

    model: str
    fields: dict[str, Any]
    stream: bool
    choices: int
    cap: int | None
    end_user: str | None
    prompts: int = 1
    shows_usage: bool = True


class Dialect:
    """One wire. Subclasses say where things stand in it; the lane and the rules are the same for all."""

    endpoint: ClassVar[str]
    path: ClassVar[bytes]
    # The names of the output limit; the first is the one that the gateway writes when the caller gave none.
    cap_fields: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[bool] = True
    anthropic: ClassVar[bool] = False
    cacheable: ClassVar[bool] = False

    def read(self, fields: dict[str, Any]) -> Ask:
        """The checked ask. Raises InvalidRequest that names the field; what is not read is not judged."""
        model = fields.get("model")
        if type(model) is not str or not model:
            raise InvalidRequest("'model' must be the name of a model.", "model", "missing_model")
        stream = fields.get("stream")
        if stream is not None and type(stream) is not bool:
            raise InvalidRequest("'stream' must be true or false.", "stream")
        if stream and not self.streams:
            raise InvalidRequest("This endpoint does not stream; leave 'stream' out.", "stream")
        check_shapes(fields)
        self.check(fields)
        if "n_cmpl" in fields:
            raise InvalidRequest("'n_cmpl' is not served here; use 'n'.", "n_cmpl", "unsupported_value")
        choices, prompts = self.choices(fields), self.prompts(fields)
        return Ask(model, fields, bool(stream), choices, self.cap(fields), self.end_user(fields), prompts)

    def check(self, fields: dict[str, Any]) -> None:
        """Raise InvalidRequest when what this wire requires is missing."""

    def has_parts(self, fields: dict[str, Any]) -> bool:
        """Whether the prompt may hold more than text, so that its bytes say little of its tokens."""
        return True

    def refuse_media(self, fields: dict[str, Any]) -> None:
        """Raise InvalidRequest when the prompt is not text alone; for engines that read nothing else."""

    def choices(self, fields: dict[str, Any]) -> int:
        """How many outputs the engine makes for this call."""
        return whole_number(fields, "n", CHOICES_MAX) or 1

    def prompts(self, fields: dict[str, Any]) -> int:
        """How many prompts stand in the body; each may fill the model's context."""
        return 1

    def cap(self, fields: dict[str, Any]) -> int | None:
        given = [
            value for name in self.cap_fields if (value := whole_number(fields, name, INT_MAX)) is not None
        ]
        return min(given) if given else None

    def end_user(self, fields: dict[str, Any]) -> str | None:
        for name in ("safety_identifier", "user"):
            value = fields.get(name)
            if value is not None:
                return end_user(value, name)
        return None

    def edits(self, ask: Ask, cap: int, engine_model: str) -> Edits:
        """The edits of the closed list in docs/wire.md that this call needs. `cap` in tokens per output."""
        edits = Edits(ask.fields)
        if engine_model != ask.model:
            edits.put("model", json_string(engine_model))
        for name in RESERVED:
            edits.drop(name)
        if self.cap_fields:
            written = False
            for name in self.cap_fields:
                given = ask.fields.get(name)
                if given is not None:
                    written = True
                    if given > cap:
                        edits.put(name, b"%d" % cap)
                elif name in ask.fields:
                    edits.drop(name)
            if not written:
                edits.put(self.cap_fields[0], b"%d" % cap)
        for name in CAP_FIELDS:
            if name in ask.fields and name not in self.cap_fields:
                edits.drop(name)
        return edits

    def usage(self, answer: dict[str, Any]) -> Usage | None:
        """The usage of a whole answer, or None when the engine gave none that can be read."""
        return openai_usage(answer.get("usage"))

    def is_whole(self, answer: dict[str, Any]) -> bool:
        """Whether the answer says of itself that it is finished."""
        return True

    def meter(self, ask: Ask, *, fixes_created: bool) -> StreamMeter:
        """The reader of one streamed answer."""
        raise InvalidRequest("This endpoint does not stream; leave 'stream' out.", "stream")


def whole_number(fields: dict[str, Any], name: str, largest: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= largest:
        raise InvalidRequest(f"'{name}' must be a whole number from 1 to {largest}.", name, "invalid_value")
    return value


def count_prompts(value: object, name: str) -> int:
    """How many prompts a field holds: a text or a list of token numbers is one, a list of those several."""
    if type(value) is not list or not value or type(value[0]) is int:
        return 1
    if len(value) > PROMPTS_MAX:
        raise InvalidRequest(f"'{name}' must hold at most {PROMPTS_MAX} texts.", name)
    return len(value)


def one_output(fields: dict[str, Any]) -> int:
    """For wires that have no `n`: an engine might still know it."""
    if fields.get("n") not in (None, 1):
        raise InvalidRequest("'n' is not served on this endpoint.", "n", "unsupported_value")
    return 1


def end_user(value: object, name: str) -> str:
    if type(value) is not str or not value or "\x00" in value or len(value.encode()) > END_USER_BYTES:
        raise InvalidRequest(f"'{name}' must be a text of 1 to {END_USER_BYTES} bytes without NUL.", name)
    return value


def json_string(text: str) -> bytes:
    return orjson.dumps(text)


def refuse_media_addresses(value: object) -> None:
    """Only media that stand in the body itself are served: an engine must not fetch what a caller names."""
    if type(value) is list:
        for item in value:
            refuse_media_addresses(item)
    elif type(value) is dict:
        for name, item in value.items():
            if name.endswith("_url") or name in ("url", "file_url"):
                address = item.get("url") if type(item) is dict else item
                if type(address) is str and not address.startswith("data:"):
                    raise InvalidRequest(
                        "Media must be sent inline as a data: address.",
                        "messages",
                        "media_address_not_allowed",
                    )
            if type(item) is list or type(item) is dict:
                refuse_media_addresses(item)
