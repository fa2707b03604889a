"""What a key looks like, how it arrives, what of it may be written down."""

from hashlib import sha256

import pytest

from api.access.keys import key_from_headers, make_key, redacted


def test_a_key_is_a_mark_and_256_random_bits_of_which_only_the_hash_and_eight_characters_are_kept() -> None:
    made = make_key()
    assert made.key.startswith("tg-")
    assert len(made.key) == 3 + 43
    assert made.digest == sha256(made.key.encode()).digest()
    assert made.prefix == made.key[:8]
    assert made.key not in repr(made)
    assert make_key().key != made.key


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer tg-a")], b"tg-a"),
        ([(b"authorization", b"bearer  tg-a ")], b"tg-a"),
        ([(b"x-api-key", b"tg-b")], b"tg-b"),
        ([(b"x-api-key", b"tg-b"), (b"authorization", b"Bearer tg-a")], b"tg-a"),
        ([(b"authorization", b"Basic dXNlcg=="), (b"x-api-key", b"tg-b")], b"tg-b"),
        ([(b"authorization", b"Bearer"), (b"x-api-key", b"")], None),
        ([(b"authorization", b"Bearer \xff\xfe")], b"\xff\xfe"),
        ([], None),
    ],
)
def test_a_key_comes_as_bearer_or_as_x_api_key(headers: list[tuple[bytes, bytes]], key: bytes | None) -> None:
    assert key_from_headers(dict(headers)) == key


def test_only_the_prefix_of_a_key_is_left_in_a_log_line() -> None:
    key = make_key().key
    line = redacted(f"GET /v1/models/{key}?x={key}")
    assert key not in line
    assert key[:8] in line
    assert key[8:12] not in line
