"""A caller's JSON body: read strictly once, and edited by splicing so that nothing is re-serialised.

The closed list of edits stands in docs/wire.md. Bytes that no edit names reach the engine as they came.
"""

import re
from typing import Any

import orjson

from api.errors import InvalidRequest

# An escape that spells an ASCII letter or sign could hide a second copy of a key ("mod\u0065l").
_HIDDEN_ASCII = re.compile(rb"\\u00[2-7]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


class Member:
    """Where one member of a JSON object stands: offsets into the bytes of the body."""

    __slots__ = ("end", "key", "start", "value_start")

    def __init__(self, key: str, start: int, value_start: int, end: int) -> None:
        self.key, self.start, self.value_start, self.end = key, start, value_start, end


def parse(body: bytes) -> dict[str, Any]:
    """The body as a dict; InvalidRequest (400) for anything that two readers could understand differently."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if type(fields) is not dict:
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    try:
        # Written again the same: no key was dropped, none was spelled in a hidden way. Most clients write so.
        same = orjson.dumps(fields) == body
    except orjson.JSONEncodeError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    if not same and _may_repeat_a_key(body, fields):
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


def _may_repeat_a_key(body: bytes, fields: dict[str, Any]) -> bool:
    """False is sure; True only means that a closer look is needed. A few scans in C for most bodies."""
    if b"\\u00" in body and _HIDDEN_ASCII.search(body):
        return True
    for key in fields:
        quoted = b'"' + key.encode() + b'"'
        # The text may stand as a value too ("user"): then it is counted as a key only.
        if body.count(quoted) != 1 and len(re.findall(re.escape(quoted) + rb"\s*:", body)) != 1:
            return True
    return False


def members(body: bytes, start: int = 0) -> list[Member]:
    """The members of the object that begins at or after `start`, in order. The body is valid JSON."""
    found: list[Member] = []
    depth, key, key_start, value_start, last_end, expect_key = 0, "", 0, -1, 0, False
    for match in _TOKEN.finditer(body, start):
        token = match.group()
        if depth == 1:
            if expect_key and token[:1] == b'"':
                key, key_start, expect_key = orjson.loads(token), match.start(), False
                continue
            if token == b":" and value_start < 0:
                value_start = 0
                continue
            if value_start == 0:
                value_start = match.start()
            if token == b"," or token == b"}":
                if value_start > 0:
                    found.append(Member(key, key_start, value_start, last_end))
                value_start, expect_key = -1, True
        if token in _OPENING:
            depth += 1
            expect_key = expect_key or depth == 1
        elif token in _CLOSING:
            depth -= 1
            if depth == 0:
                break
        last_end = match.end()
    return found


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
        found = members(body, start)
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
