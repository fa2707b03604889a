"""RESP2, read at every way a network may cut it."""

import pytest

from engine.errors import ValkeyRefused
from engine.resp import BrokenReply, Reply, ReplyReader, pack

WIRE = (
    b"+OK\r\n:-12\r\n$5\r\nh\r\nlo\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
    b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+x\r\n-ERR no\r\n:7\r\n"
)
REPLIES: list[Reply] = [b"OK", -12, b"h\r\nlo", b"", None, None, [], [1, [b"a", None], b"x"]]


def seen(pieces: list[bytes]) -> list[Reply]:
    reader = ReplyReader()
    return [reply for piece in pieces for reply in reader.feed(piece)]


@pytest.mark.parametrize("at", range(len(WIRE) + 1))
def test_a_reply_cut_anywhere_is_the_same_reply(at: int) -> None:
    *replies, refused, last = seen([WIRE[:at], WIRE[at:]])
    assert replies == REPLIES
    assert isinstance(refused, ValkeyRefused)
    assert str(refused) == "ERR no"
    assert last == 7


def test_replies_may_come_byte_by_byte() -> None:
    assert len(seen([WIRE[i : i + 1] for i in range(len(WIRE))])) == len(REPLIES) + 2


@pytest.mark.parametrize("wire", [b"HTTP/1.1 200 OK\r\n", b":one\r\n", b"$x\r\n", b"\r\n", b"*1\r\n?\r\n"])
def test_what_is_no_resp_is_refused(wire: bytes) -> None:
    with pytest.raises(BrokenReply):
        ReplyReader().feed(wire)


def test_commands_are_packed_by_length_so_any_bytes_may_be_in_them() -> None:
    assert pack((b"SET", b"k", b"a\r\nb")) == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n"
