"""RESP2, the protocol of Valkey and Redis: commands out, replies in.

Source: https://valkey.io/topics/protocol/. A reply is bytes (simple and bulk strings), int, None, a list of
those, or ValkeyRefused (as a value: inside an array it does not end the others).
"""

from typing import Any

from engine.errors import ValkeyError, ValkeyRefused

Reply = bytes | int | None | list[Any] | ValkeyRefused

_STRING, _ERROR, _INT, _BULK, _ARRAY = b"+-:$*"


class BrokenReply(ValkeyError):
    """What came in is no RESP2; the connection cannot be read further."""


def pack(args: tuple[bytes, ...]) -> bytes:
    """One command as bytes."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        parts.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
    return b"".join(parts)


class ReplyReader:
    """Cuts replies out of reads. A reply that is not whole waits, and is not parsed again at each read."""

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0  # bytes in _parts
        self._need = 0  # bytes that the first reply in _parts takes at least

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are whole now, in order. Raises BrokenReply."""
        if self._have:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self._have = 0
        replies: list[Reply] = []
        at, end = 0, len(data)
        try:
            while at < end:
                stop = data.find(b"\r\n", at)
                if stop < 0:
                    self._keep(data, at, end - at + 1)
                    break
                kind = data[at]
                if kind == _STRING:
                    replies.append(data[at + 1 : stop])
                    at = stop + 2
                elif kind == _INT:
                    replies.append(int(data[at + 1 : stop]))
                    at = stop + 2
                else:
                    reply, after = _parse(data, at, stop, end)
                    if after > end:
                        self._keep(data, at, after - at)
                        break
                    replies.append(reply)
                    at = after
        except (ValueError, IndexError) as error:
            raise BrokenReply(
                "The server sent something that is no RESP2; is it a Valkey or Redis?"
            ) from error
        return replies

    def _keep(self, data: bytes, at: int, need: int) -> None:
        self._parts.append(data[at:] if at else data)
        self._have = len(data) - at
        self._need = need


def _parse(data: bytes, at: int, stop: int, end: int) -> tuple[Reply, int]:
    """The reply at `at`, whose first line ends at `stop`, and where it ends: beyond `end` when not whole."""
    kind = data[at]
    if kind == _STRING:
        return data[at + 1 : stop], stop + 2
    if kind == _INT:
        return int(data[at + 1 : stop]), stop + 2
    if kind == _ERROR:
        return ValkeyRefused(data[at + 1 : stop].decode("utf-8", "replace")), stop + 2
    size = int(data[at + 1 : stop])
    if kind == _BULK:
        if size < 0:
            return None, stop + 2
        last = stop + 2 + size
        return data[stop + 2 : last], last + 2
    if kind != _ARRAY:
        raise ValueError(kind)
    if size < 0:
        return None, stop + 2
    items: list[Reply] = []
    at = stop + 2
    for _ in range(size):
        stop = data.find(b"\r\n", at)
        if stop < 0:
            return None, end + 1
        item, at = _parse(data, at, stop, end)
        if at > end:
            return None, at
        items.append(item)
    return items, at
