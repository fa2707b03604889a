"""What a key looks like, how it arrives, and what of it may ever be written down."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

MARK = "tg-"
PREFIX_LENGTH = 8  # characters of a key that may be stored and shown, the mark included
RANDOM_BYTES = 32  # 43 url-safe characters, 256 bits

_KEY_IN_TEXT = re.compile(re.escape(MARK) + r"[A-Za-z0-9_-]{5,}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the only moment when it is known: `key` goes to its owner, the rest into the database."""

    key: str = field(repr=False)
    digest: bytes = field(repr=False)
    prefix: str


def make_key() -> NewKey:
    """A fresh key from the operating system's random numbers."""
    key = MARK + secrets.token_urlsafe(RANDOM_BYTES)
    return NewKey(key, sha256(key.encode("ascii")).digest(), key[:PREFIX_LENGTH])


def key_from_headers(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The caller's key, from `Authorization: Bearer KEY` or `x-api-key: KEY`; header names in lower case.

    None when neither is there or what is there is empty. A key in the address is not looked for: addresses
    are logged.
    """
    value = headers.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer " and (key := value[7:].strip()):
        return key
    value = headers.get(b"x-api-key")
    return (value.strip() or None) if value is not None else None


def redacted(text: str) -> str:
    """The text with every key in it cut to its prefix, for logs."""
    return _KEY_IN_TEXT.sub(lambda found: found[0][:PREFIX_LENGTH] + "…", text)
