"""Which processes work with the limits server, and whether it knows all that they have open.

When the server lost its data, the processes that were known before are awaited: they announce their open
calls as soon as they notice. Until they have, or one lease time has passed, no app is made known to it again.
"""

from api.limits.scripts import CENSUS
from engine.errors import ValkeyError
from engine.resp import Reply, pack
from engine.valkey import ValkeyClient

GRACE_SECONDS = (
    2.0  # for processes to notice a server without data: twice the client's longest back-off, and more
)
POLL_SECONDS = 0.1
KEYS = tuple(b"tollgate:{limits}:" + name for name in (b"born", b"processes", b"awaited"))


class Census:
    """One process's part in it.

    name: of this process, without spaces. peers: the others that are alive, as of the last reply.
    """

    def __init__(
        self, client: ValkeyClient, name: bytes, lease_ms: int, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._client, self.name = client, name
        self._lease_ms, self._grace_ms = lease_ms, round(grace_seconds * 1000)
        self._sha = client.script(CENSUS)
        self._born = b""
        self.peers: tuple[bytes, ...] = ()
        self._age_ms = self._awaited = 0

    async def call(self) -> bool:
        """Take part, once all open calls are announced. True: the server lost its data since the last.

        Raises ValkeyError.
        """
        return self._heard(await self._client.ask(*self._words()))

    def call_soon(self) -> None:
        """The same, without waiting for the reply."""

        def answered(reply: Reply | ValkeyError) -> None:
            if isinstance(reply, bytes):
                self._heard(reply)

        self._client.call(self._words(), answered)

    def _words(self) -> tuple[bytes, ...]:
        lease = b"%d" % self._lease_ms
        return (b"EVALSHA", self._sha, b"3", *KEYS, self.name, lease, self._born, *self.peers)

    def leave(self) -> None:
        """This process ends with nothing open: nobody need wait for it."""
        self._client.send(pack((b"ZREM", KEYS[1], self.name)), lambda reply: None)

    def wait_ms(self) -> int:
        """By the last reply: how long until what the server does not know is surely not there; 0: now."""
        if self._age_ms >= self._lease_ms:
            return 0
        if self._awaited:
            return self._lease_ms - self._age_ms
        return max(0, self._grace_ms - self._age_ms)

    def _heard(self, reply: Reply) -> bool:
        assert isinstance(reply, bytes)
        born, age, awaited, *alive = reply.split()
        lost = bool(self._born) and born != self._born
        self._born, self._age_ms, self._awaited = born, int(age), int(awaited)
        self.peers = tuple(name for name in alive if name != self.name)
        return lost
