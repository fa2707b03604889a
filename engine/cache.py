"""Answers kept for equal prompts of one app (docs/cache.md has the rules).

The cache is a convenience: when its server is away, slow or full, every look-up is a miss.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import orjson

from engine.errors import ValkeyError, ValkeyRefused
from engine.resp import Reply, pack
from engine.valkey import ValkeyClient

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # one answer
TTL_SECONDS = 24 * 3600

# What cannot change the answer. Every other field counts, known or not.
SILENT_FIELDS = frozenset(
    (
        "stream",
        "stream_options",
        "user",
        "safety_identifier",
        "metadata",
        "store",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    )
)
PREFIX = b"tollgate:answer:"


class ResultCache:
    """One process's way to the cache server.

    max_bytes: longer answers are not kept. ttl_s: seconds until an answer is forgotten.
    """

    def __init__(self, client: ValkeyClient, max_bytes: int = MAX_BYTES, ttl_s: int = TTL_SECONDS) -> None:
        self.max_bytes = max_bytes
        self._client = client
        self._ttl = b"%d" % ttl_s
        self._said_refused = False

    def get(self, key: bytes, then: Callable[[bytes | None], None]) -> None:
        """Look an answer up; `then` gets it, or None for a miss or a server that is away."""
        if not self._client.connected:
            self._client.loop.call_soon(then, None)
            return

        def answered(reply: Reply | ValkeyError) -> None:
            then(reply if isinstance(reply, bytes) else None)

        self._client.send(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key), answered)

    def put(self, key: bytes, answer: bytes) -> None:
        """Keep a whole answer (JSON of the non-streamed form). Never fails; what cannot be kept is not."""
        if len(answer) <= self.max_bytes and self._client.connected:
            self._client.send(pack((b"SET", key, answer, b"EX", self._ttl)), self._stored)

    def _stored(self, reply: Reply | ValkeyError) -> None:
        refused = isinstance(reply, ValkeyRefused)
        if refused != self._said_refused:
            self._said_refused = refused
            log.warning(
                "the cache server %s", f"keeps nothing: {reply!r}" if refused else "keeps answers again"
            )

    @staticmethod
    def wanted(body: Mapping[str, Any], header: bytes | None) -> bool:
        """Whether a call may be answered from the cache and its answer kept.

        header: the value of `x-tollgate-cache`: on, off or no-store; others count as absent. Without it only
        calls whose answer is meant to repeat: temperature 0, or a fixed seed.
        """
        if header is not None:
            word = header.strip().lower()
            if word == b"on":
                return True
            if word in (b"off", b"no-store"):
                return False
        temperature = body.get("temperature")
        # True and False are ints to Python, but not numbers to the API.
        if (type(temperature) is int or type(temperature) is float) and temperature == 0:
            return True
        return type(body.get("seed")) is int

    @staticmethod
    def key(
        app_id: str, version_id: str, endpoint: str, body: Mapping[str, Any], cap: int | None = None
    ) -> bytes:
        """The name of the answer to this body (JSON values as orjson reads them).

        The app and the version are part of it: no app sees another's answers, no canary its predecessor's.
        cap: the output cap in tokens that the gateway sends, which the body may not say.
        """
        counting = {name: value for name, value in body.items() if name not in SILENT_FIELDS}
        parts = orjson.dumps([app_id, version_id, endpoint, cap, counting], option=orjson.OPT_SORT_KEYS)
        return PREFIX + sha256(parts).hexdigest().encode()
