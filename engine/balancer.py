"""Which version and which replica answer a call."""

from collections.abc import Collection

from engine.registry import Model, Replica, Version

DOWN_SECONDS = 1.0  # a replica that could not be reached is passed over for so long while others are there


class Balancer:
    """Picks for one process. Versions share calls by weight, replicas by least load."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}
        self._down_until: dict[str, float] = {}
        self._turn = 0

    def version(self, model: Model) -> Version | None:
        """The version for the next call: those with weight 0 never, the others exactly by weight over time.

        Each call adds a version's share to its credit; the richest serves and pays one call. So the count
        of any version differs from its share by less than one call per process.
        """
        usable = [v for v in model.versions if v.weight > 0 and any(r.state == "ready" for r in v.replicas)]
        if len(usable) < 2:
            return usable[0] if usable else None
        total = sum(version.weight for version in usable)
        credit = self._credit
        for version in usable:
            credit[version.id] = credit.get(version.id, 0.0) + version.weight / total
        chosen = max(usable, key=lambda version: credit[version.id])
        credit[chosen.id] -= 1.0
        return chosen

    def replica(self, version: Version, now: float, tried: Collection[str] = ()) -> Replica | None:
        """The ready replica with the fewest calls in flight, equals in turn; None when every one was tried.

        `tried` holds the ids that failed this call. One that could not be reached lately serves only when
        no other is left. `now`: the loop's clock, seconds.
        """
        ready = [r for r in version.replicas if r.state == "ready" and r.id not in tried]
        if not ready:
            return None
        if self._down_until:
            ready = [r for r in ready if self._down_until.get(r.id, 0.0) <= now] or ready
        self._turn += 1
        if len(ready) == 1:
            return ready[0]
        fewest = min(replica.in_flight for replica in ready)
        equal = [replica for replica in ready if replica.in_flight == fewest]
        return equal[self._turn % len(equal)]

    def unreachable(self, replica: Replica, now: float) -> None:
        self._down_until[replica.id] = now + DOWN_SECONDS

    def reachable(self, replica: Replica) -> None:
        if self._down_until:
            self._down_until.pop(replica.id, None)
