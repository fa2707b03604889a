"""A caller's JSON body: read strictly once, and edited by splicing so that nothing is re-serialised.

The closed list of edits stands in docs/wire.md. Bytes that no edit names reach the engine as they came.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from api.errors import InvalidRequest

# Bounds of what a body may be made of, so that a closer look at any body of 32 MiB stays well under a second.
MEMBERS_MAX = 256  # members of the body itself; the wires know some 60
PARTS_MAX = 1_000_000  # strings, lists and objects in it, as counted by their opening signs
NESTED_MAX = 100_000  # lists and objects in one of its members that have others in them
# Longer bodies, or with more members, are not searched for each key: one walk is cheaper then.
SEARCHED_BYTES_MAX = 1 << 20
SEARCHED_MEMBERS_MAX = 32

# An escape that spells an ASCII letter or sign could hide a second copy of a key ("mod\u0065l").
_HIDDEN_ASCII = re.compile(rb"\\u00[2-7]")
# All repeats are possessive: nothing is kept to go back to, so that long strings and lists cost no memory.
_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[{\[](?:[^"{}\[\]]++|' + _TEXT + rb")*+[}\]]"  # a list or object with none in it
_STRING = re.compile(_TEXT)
_SCALAR = re.compile(rb'[^\s"{}\[\],:]++')
_BETWEEN = re.compile(rb"[\s,:]*+")
_UP_TO_A_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + _TEXT + b"|" + _FLAT + rb")*+")
_QUOTE, _OPENING = ord('"'), b"{["


class Member:
    """Where one member of a JSON object stands: offsets into the bytes of the body."""

    __slots__ = ("end", "key", "start", "value_start")

    def __init__(self, key: str, start: int, value_start: int, end: int) -> None:
        self.key, self.start, self.value_start, self.end = key, start, value_start, end


def parse(body: bytes) -> dict[str, Any]:
    """The body as a dict; InvalidRequest (400) for anything that two readers could understand differently."""
    openings = body.count(b"{") + body.count(b"[") if len(body) > NESTED_MAX else 0
    if len(body) > PARTS_MAX and openings + body.count(b'"') // 2 > PARTS_MAX:
        raise _too_many(f"{PARTS_MAX} strings, lists and objects")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if type(fields) is not dict:
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    if len(fields) > MEMBERS_MAX:
        raise _too_many(f"{MEMBERS_MAX} fields")
    try:
        # Written again the same: no key was dropped, none was spelled in a hidden way. Most clients write so.
        same = orjson.dumps(fields) == body
    except orjson.JSONEncodeError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    # With that many brackets it is walked in any case, so that edits meet no body that is too much for them.
    if openings > NESTED_MAX or (not same and _may_repeat_a_key(body, fields)):
        seen: set[str] = set()
        for member in members(body):
            if member.key in seen:
                raise InvalidRequest(
                    f"The key {member.key!r} stands twice in the body.",
                    param=member.key,
                    code="duplicate_key",
                )
            seen.add(member.key)
    return fields


def _too_many(bound: str) -> InvalidRequest:
    return InvalidRequest(f"The body may be made of {bound} at most.", code="too_many_parts")


def _may_repeat_a_key(body: bytes, fields: dict[str, Any]) -> bool:
    """False is sure; True only means that a closer look is needed. A few scans in C for most bodies."""
    if len(body) > SEARCHED_BYTES_MAX or len(fields) > SEARCHED_MEMBERS_MAX:
        return True
    if b"\\u00" in body and _HIDDEN_ASCII.search(body):
        return True
    for key in fields:
        quoted = b'"' + key.encode() + b'"'
        # The text may stand as a value too ("user"): then it is counted as a key only.
        if body.count(quoted) != 1 and len(re.findall(re.escape(quoted) + rb"\s*:", body)) != 1:
            return True
    return False


def members(body: bytes, start: int = 0) -> Iterator[Member]:
    """The members of the object that begins at or after `start`, in order. The body is valid JSON.

    InvalidRequest (400) beyond NESTED_MAX; not for what `parse` has let pass.
    """
    at = _after(_BETWEEN, body, body.index(b"{", start) + 1)
    while body[at] == _QUOTE:
        key_start, at = at, _after(_STRING, body, at)
        key = orjson.loads(body[key_start:at])
        value_start = _after(_BETWEEN, body, at)
        end = _end_of_value(body, value_start)
        yield Member(key, key_start, value_start, end)
        at = _after(_BETWEEN, body, end)


def _end_of_value(body: bytes, at: int) -> int:
    """Where the value ends that begins at `at`. What is in it is passed over by a scan in C, but for the
    brackets of lists and objects that have others in them."""
    first = body[at]
    if first == _QUOTE:
        return _after(_STRING, body, at)
    if first not in _OPENING:
        return _after(_SCALAR, body, at)
    depth = 0
    for _ in range(2 * NESTED_MAX):
        depth += 1 if body[at] in _OPENING else -1
        at += 1
        if depth == 0:
            return at
        match = _UP_TO_A_BRACKET.match(body, at)
        if match is not None:
            at = match.end()
    raise _too_many(f"{NESTED_MAX} lists and objects with others in them")


def _after(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    match = pattern.match(body, at)
    assert match is not None  # the body is valid JSON
    return match.end()


class Edits:
    """Edits of one object's members, applied in one pass by `apply`.

    `put` adds or replaces, `drop` takes out. Values are JSON bytes.
    """

    __slots__ = ("added", "changed", "fields", "inside")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.added: list[bytes] = []
        self.changed: dict[str, bytes | None] = {}
        self.inside: dict[str, Edits] = {}

    def put(self, key: str, value: bytes) -> None:
        if key in self.fields:
            self.changed[key] = value
        else:
            self.added.append(b'"' + key.encode() + b'":' + value)

    def put_inside(self, key: str, inner: str, value: bytes) -> None:
        """`put` a member of the object that stands under `key`; the object is made where there is none."""
        held = self.fields.get(key)
        if held is None:
            self.put(key, b'{"' + inner.encode() + b'":' + value + b"}")
        else:
            self.inside.setdefault(key, Edits(held)).put(inner, value)

    def drop(self, key: str) -> None:
        if key in self.fields:
            self.changed[key] = None

    def apply(self, body: bytes, start: int = 0) -> bytes:
        """The bytes of the object with the edits made. Added members stand first, before the caller's."""
        if self.changed or self.inside:
            body = self._splice(body, start)
        if not self.added:
            return body
        at = body.index(b"{", start) + 1
        rest = body[at:]
        joint = b"" if rest.lstrip()[:1] == b"}" else b","
        return body[:at] + b",".join(self.added) + joint + rest

    def _splice(self, body: bytes, start: int) -> bytes:
        found = list(members(body, start))
        pieces: list[bytes] = []
        at, kept = 0, 0
        for number, member in enumerate(found):
            if member.key in self.inside:
                pieces += (
                    body[at : member.value_start],
                    self.inside[member.key].apply(body[member.value_start : member.end]),
                )
                at = member.end
            if member.key not in self.changed:
                kept += 1
                continue
            value = self.changed[member.key]
            if value is not None:
                pieces += (body[at : member.value_start], value)
                at = member.end
                kept += 1
            elif kept or number + 1 == len(found):
                # With the comma before it; the first member has none.
                before = found[number - 1].end if number else member.start
                pieces.append(body[at : max(at, before)])
                at = member.end
            else:
                # Nothing is kept before it: with the comma after it.
                pieces.append(body[at : member.start])
                at = found[number + 1].start
        pieces.append(body[at:])
        return b"".join(pieces)
