"""Who is calling: the one rule that the routes apply to a caller's headers."""

from collections.abc import Iterable

from api.access.directory import Access
from api.access.keys import key_from_headers
from api.errors import DirectoryUnavailable, InvalidKey, NotPermitted
from api.snapshot import Snapshot


async def find_access(snapshot: Snapshot, headers: Iterable[tuple[bytes, bytes]]) -> Access:
    """What the caller's key opens.

    Raises InvalidKey when there is no key or a bad one, DirectoryUnavailable when nobody can tell: the key
    is not known here and Postgres is away, or Postgres has been away for longer than KEY_STALE_MAX.
    """
    key = key_from_headers(dict(headers))
    if key is None:
        raise InvalidKey
    if snapshot.stale():
        raise DirectoryUnavailable
    access = snapshot.directory.find(key)
    if access is None:
        access = await snapshot.look_up_key(key)
    if access is None:
        raise InvalidKey
    return access


def require_scope(access: Access, scope: str) -> None:
    """Raises NotPermitted when the key is good but lacks the scope."""
    if scope not in access.scopes:
        raise NotPermitted(f"This key lacks the scope '{scope}'; use one that has it.")
