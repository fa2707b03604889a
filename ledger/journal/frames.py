"""How records lie in a journal file.

A frame is `u32 length | u32 crc32 | payload`, little endian; length and crc32 are of the payload. A file is
preallocated, so that a zero length is the end of what was written.
"""

import struct
from zlib import crc32

HEADER = struct.Struct("<II")
HEADER_BYTES = HEADER.size
MAX_PAYLOAD = 1 << 16  # bytes; a longer length is damage, not a record

_pack = HEADER.pack


def frame(payload: bytes) -> bytes:
    """The payload with its header before it."""
    return _pack(len(payload), crc32(payload)) + payload
