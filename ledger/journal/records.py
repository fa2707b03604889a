"""The two records of a call, and their form on disk.

Times are microseconds since the epoch, money is in units of 1e-12 of the currency; both are exact integers.
Ids are UUIDs as canonical text.

A payload is one kind byte (`O` open, `C` close), one version byte, and a JSON array of the record's fields
in the order below. A field is never moved or dropped: a change of meaning is a new version byte.
"""

from typing import NamedTuple, TypeAlias

import orjson

OPEN = ord("O")
CLOSE = ord("C")
VERSION = 1
MAX_CLOSE = 1 << 15  # bytes; writers keep far below it
_OPEN_HEAD = bytes((OPEN, VERSION))
_CLOSE_HEAD = bytes((CLOSE, VERSION))

# What `encode_close` cuts a close to when it would not fit into the room that its open reserved.
_KEPT_ATTEMPTS = 4
_KEPT_FLAGS = 8
_KEPT_TEXT = 64  # characters

_OPEN_LIMIT = 16 << 10  # bytes
_LONG_TEXT = 256  # characters


class OpenRecord(NamedTuple):
    """What is known of a call before the first byte goes to the engine."""

    id: str
    organisation_id: str
    app_id: str
    key_id: str
    end_user: str | None
    model: str
    version_id: str | None
    replica_id: str | None
    endpoint: str
    stream: bool
    price_id: str | None
    currency: str
    hold: int  # worst case, 1e-12 of the currency
    prompt_bound: int  # tokens
    admitted_us: int
    cache: str  # off | miss | hit


class Attempt(NamedTuple):
    """One try at an engine. `kind`: call | retry | failover | warm_up | probe | shadow."""

    kind: str
    replica_id: str | None
    outcome: str
    status: int
    prompt: int
    cached: int
    completion: int
    started_us: int
    ended_us: int
    error_code: str | None


class CloseRecord(NamedTuple):
    """How the call ended. Tokens are the caller's, the attempts carry what each try cost."""

    id: str
    outcome: str
    status: int
    prompt_tokens: int
    cached_tokens: int  # part of prompt_tokens
    completion_tokens: int
    reasoning_tokens: int  # part of completion_tokens
    usage_source: str  # engine | counted | none
    charge: int  # 1e-12 of the currency
    ended_us: int
    first_byte_us: int | None  # when the first byte of the answer went out, since the epoch as all times here
    replica_id: str | None  # that served
    version_id: str | None
    attempts: list[Attempt]
    flags: list[str]
    error_code: str | None


Record: TypeAlias = OpenRecord | CloseRecord


class UnreadableRecord(ValueError):
    """The checksum is right and yet this is no record that this version can read."""


def encode_open(record: OpenRecord) -> bytes:
    """The payload; texts beyond all measure are cut, for a record that cannot be read again is lost."""
    try:
        payload = _OPEN_HEAD + orjson.dumps([*record])
    except TypeError:
        payload = _OPEN_HEAD + _dump_oddity([*record])
    if len(payload) > _OPEN_LIMIT:
        payload = _OPEN_HEAD + _dump_oddity([f[:_LONG_TEXT] if isinstance(f, str) else f for f in record])
    return payload


def encode_close(record: CloseRecord, limit: int) -> bytes:
    """The payload, at most `limit` bytes (at least 1,500): what does not fit is cut and flagged `trimmed`."""
    fields: list[object] = [*record]
    attempts = record.attempts
    if attempts:
        fields[13] = [[*attempt] for attempt in attempts]
    try:
        payload = _CLOSE_HEAD + orjson.dumps(fields)
    except TypeError:
        payload = _CLOSE_HEAD + _dump_oddity(fields)
    if len(payload) <= limit:
        return payload
    fields[13] = [[*_cut(attempt)] for attempt in attempts[:_KEPT_ATTEMPTS]]
    fields[14] = [flag[:_KEPT_TEXT] for flag in record.flags[:_KEPT_FLAGS]] + ["trimmed"]
    fields[15] = record.error_code and record.error_code[:_KEPT_TEXT]
    return _CLOSE_HEAD + _dump_oddity(fields)


def decode(payload: bytes) -> Record:
    """The record in a payload whose checksum was right.

    Raises UnreadableRecord for another version, kind or shape.
    """
    if len(payload) < 2 or payload[1] != VERSION:
        raise UnreadableRecord(f"record version {payload[1:2].hex()} is not one that this version reads")
    try:
        fields = orjson.loads(payload[2:])
        if b"\\u0000" in payload:
            fields = _without_nul(fields)
        if payload[0] == OPEN:
            fields[12] = int(fields[12])
            return OpenRecord._make(fields)
        if payload[0] == CLOSE:
            fields[8] = int(fields[8])
            fields[13] = [Attempt._make(attempt) for attempt in fields[13]]
            return CloseRecord._make(fields)
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadableRecord(f"record does not have the fields of version {VERSION}: {error}") from error
    raise UnreadableRecord(f"record kind {payload[:1]!r} is unknown")


def _cut(attempt: Attempt) -> Attempt:
    code = attempt.error_code
    return attempt._replace(error_code=code and code[:_KEPT_TEXT])


def _dump_oddity(value: object) -> bytes:
    # Integers beyond 64 bits (a hold above nine million of the currency) become text, half surrogates
    # become '?': a call is never lost because of what a caller put into a name.
    return orjson.dumps(_tame(value))


def _tame(value: object) -> object:
    if isinstance(value, list):
        return [_tame(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value


def _without_nul(value: object) -> object:
    # Postgres text cannot hold NUL, and a name with one in it must not make its call free.
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    return value.replace("\x00", "�") if isinstance(value, str) else value
