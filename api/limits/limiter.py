"""Admission and settlement of calls against limits and budgets shared by all processes.

Two round trips per call: `admit` checks and takes everything in one script, `settle` gives back what was not
used in another. The limits server's clock is the clock. docs/limits.md says what is promised.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable

from api.access.directory import App
from api.limits import messages
from api.limits.census import GRACE_SECONDS, Census
from api.limits.decisions import Admitted, Decision, LimitsUnavailable, Refused, Reservation
from api.limits.opening import Opening
from api.limits.plan import HOLD_MAX, Plan, Scripts, make_plan, with_last
from api.limits.reconciler import Reconciler
from api.limits.scripts import ADMIT, RENEW, SETTLE
from api.limits.spent import SpentSource
from engine.errors import ValkeyError, ValkeyNotSent, ValkeyRefused
from engine.resp import Reply
from engine.valkey import ValkeyClient

__all__ = ["Admitted", "Decision", "Limiter", "LimitsUnavailable", "Refused", "Reservation"]

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0  # a slot is free again so long after its process was last heard of
BEATS_PER_LEASE = 3
REFUSING_SECONDS = (
    15.0  # after a refusal of the limits server the process says for so long that it is not ready
)
RETRY_SECONDS = 0.5  # until a settlement that the server refused is sent again
STOP_SECONDS = 2.0  # for the last settlements
RENEWED_AT_ONCE = 100  # calls in one script, so that the server is not held up
USER_PLANS = 10_000  # packed plans of end users that are kept
ROUNDS = 4  # asks per admission: the app and the end user may have to be made known first, each period anew
OPEN_CALL, REFUSED, SHORT, ASKED, UNKNOWN = b"ARBNU"
FIGURES_AT = {REFUSED: 7, SHORT: 5, ASKED: 1}  # where the figures for headers begin in a refusal

Then = Callable[[Decision], None]


class Limiter:
    """One process's way to the limits server. Parts of it run in callbacks; none raises to its caller.

    open: calls that were admitted and not settled yet, by id. settling: settlements on their way.
    """

    def __init__(
        self,
        client: ValkeyClient,
        *,
        loop: asyncio.AbstractEventLoop,
        spent: SpentSource,
        lease_seconds: float = LEASE_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        owner: str | None = None,
    ) -> None:
        self.client, self._loop = client, loop
        self.open: dict[str, _Call] = {}
        name = (owner or f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1000}").encode()
        lease_ms = round(lease_seconds * 1000)
        self._renew = client.script(RENEW)
        self._scripts = Scripts(client.script(ADMIT), client.script(SETTLE), self._renew, name, lease_ms)
        self._census = Census(client, name, lease_ms, grace_seconds)
        self._opening = Opening(client, self._census, spent, self._announce)
        self._reconciler = Reconciler(client, self._census, spent, self._scripts.settle, lease_ms)
        self._reconciling: asyncio.Task[int] | None = None
        self._beats = 0
        self._plans: dict[str, Plan] = {}
        self._user_plans: dict[tuple[str, str], Plan] = {}
        self._unsettled: list[_Call] = []  # whose settlements the server has not got
        self.settling = 0
        self._retry: asyncio.TimerHandle | None = None
        self.stopping = False
        self._all_settled: asyncio.Future[None] = loop.create_future()  # watched when stopping
        self._said_refused = ""
        self._refused_at = -REFUSING_SECONDS
        self._beat_seconds = lease_seconds / BEATS_PER_LEASE
        client.on_connected.append(self._hello)
        if client.connected:
            self._hello()
        self._beat = loop.call_later(self._beat_seconds, self._heartbeat)

    def admit(self, reservation: Reservation, then: Then) -> None:
        """Take what the call may use at most, or say why not; `then` may be called before this returns."""
        app = reservation.app
        plan = self._plans.get(app.id)
        if plan is None or plan.app is not app:
            plan = self._plans[app.id] = make_plan(app, None, self._scripts)
        if plan.per_user and reservation.end_user is not None:
            plan = self._user_plan(app, reservation.end_user)
        call = _Call(self, plan, reservation, then)
        id = reservation.call_id.encode()
        last = call.last = b"%b %d %d" % (id, reservation.tokens, reservation.hold)
        if plan.currency is not None and (
            plan.currency != reservation.currency or reservation.hold > HOLD_MAX
        ):
            # No sum of the limits server's can say yes to it: only the headers are asked for.
            last = call.last = b"%b 0 0!" % id
        self.client.send(b"%b$%d\r\n%b\r\n" % (plan.admit, len(last), last), call.answered)

    def settle(self, call_id: str, *, spent: int, tokens: int) -> None:
        """The call has ended. spent: its charge in 1e-12, tokens: what it used. Only the first settle counts.

        Its slot and hold are given back; the charge stays, and the tokens are corrected in the windows that
        counted them. Kept and sent again until the limits server has it.
        """
        call = self.open.pop(call_id, None)
        if call is None:
            return
        reserved = call.reservation
        more_tokens, more_money = tokens - reserved.tokens, spent - reserved.hold
        last = b"%b %b %d 0 %d" % (call_id.encode(), call.where, more_tokens, more_money)
        call.last = packed = b"%b$%d\r\n%b\r\n" % (call.plan.settle, len(last), last)
        self.settling += 1
        self.client.send(packed, call.settled)

    def withdraw(self, call_id: str) -> None:
        """The call was admitted, but did not begin: it counts as if it had never been asked for."""
        call = self.open.pop(call_id, None)
        if call is not None:
            reserved = call.reservation
            last = b"%b %b %d -1 %d" % (call_id.encode(), call.where, -reserved.tokens, -reserved.hold)
            self._send_settlement(call, last)

    @property
    def refusing(self) -> bool:
        """Whether the limits server answers but does no work (its disk is full, say)."""
        return self._loop.time() - self._refused_at < REFUSING_SECONDS

    @property
    def unsettled(self) -> int:
        """Settlements that the limits server has not confirmed yet."""
        return self.settling + len(self._unsettled)

    @property
    def peers(self) -> tuple[bytes, ...]:
        """The other processes that work with this limits server, as of the last heartbeat."""
        return self._census.peers

    async def stop(self) -> None:
        """Wait a moment for the last settlements, then take leave. Open calls keep what they hold."""
        self._resend()
        if self.unsettled:
            self.stopping = True
            await asyncio.wait([self._all_settled], timeout=STOP_SECONDS)
        self._beat.cancel()
        if self._retry is not None:
            self._retry.cancel()
        await self._opening.stop()
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.gather(self._reconciling, return_exceptions=True)
        if self._hello in self.client.on_connected:
            self.client.on_connected.remove(self._hello)
        if self.unsettled or self.open:
            log.warning(
                "%d settlements have not reached the limits server and %d calls are still open there",
                self.unsettled,
                len(self.open),
            )
        elif self.client.connected:
            self._census.leave()

    # Plans

    def _user_plan(self, app: App, end_user: str) -> Plan:
        name = (app.id, end_user)
        plan = self._user_plans.get(name)
        if plan is None or plan.app is not app:
            if len(self._user_plans) >= USER_PLANS:
                self._user_plans.clear()
            plan = self._user_plans[name] = make_plan(app, end_user, self._scripts)
        return plan

    # What an admission comes back with

    def not_admitted(self, call: "_Call", reply: Reply | ValkeyError) -> None:
        """Everything but a plain yes."""
        call.rounds += 1
        if isinstance(reply, bytes):
            fields = reply.split()
            if reply[0] == UNKNOWN and call.rounds < ROUNDS:
                self._opening.park(call, fields[1], fields[2])
                return
            if reply[0] in FIGURES_AT:
                headers = call.plan.headers % tuple(fields[FIGURES_AT[reply[0]] :])
                call.then(messages.refused(call.reservation, fields, headers, call.plan.tokens_max))
                return
        if isinstance(reply, ValkeyRefused) and reply.code == "NOSCRIPT" and call.rounds < ROUNDS:
            self.client.resend(with_last(call.plan.admit, call.last), call.answered)
            return
        self._say_refused(reply)
        if not isinstance(reply, ValkeyNotSent):
            # It may have been admitted all the same: then it gives everything back.
            self._send_settlement(call, b"%b - 0 0 0" % call.reservation.call_id.encode())
        call.then(LimitsUnavailable())

    # Settlements

    def _send_settlement(self, call: "_Call", last: bytes) -> None:
        call.last = with_last(call.plan.settle, last)
        self.settling += 1
        self.client.send(call.last, call.settled)

    def settled(self, call: "_Call", reply: Reply | ValkeyError) -> None:
        """A settlement's reply, when it is not the usual one; without one it is kept."""
        if type(reply) is int:
            if not self.unsettled and not self._all_settled.done():
                self._all_settled.set_result(None)
            return
        if isinstance(reply, ValkeyRefused) and reply.code == "NOSCRIPT":
            self.settling += 1
            self.client.resend(call.last, call.settled)
            return
        self._say_refused(reply)
        self._unsettled.append(call)
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._resend)

    def _resend(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self.client.connected:  # else the next connect sends them
            unsettled, self._unsettled = self._unsettled, []
            for call in unsettled:
                self.settling += 1
                self.client.send(call.last, call.settled)

    def _say_refused(self, reply: Reply | ValkeyError) -> None:
        """Once per kind of refusal, not once per call."""
        if not isinstance(reply, ValkeyRefused):
            return
        self._refused_at = self._loop.time()
        if reply.code != self._said_refused:
            self._said_refused = reply.code
            log.error("the limits server refuses to work: %s", reply)

    # Heartbeat

    def _hello(self) -> None:
        """After each connect: the server may have lost what it knew of this process."""
        self._announce()
        self._resend()
        self._census.call_soon()

    def _heartbeat(self) -> None:
        self._beat = self._loop.call_later(self._beat_seconds, self._heartbeat)
        if self.client.connected:
            self._hello()
            self._beats += 1
            if self._beats % BEATS_PER_LEASE == 0 and (self._reconciling is None or self._reconciling.done()):
                self._reconciling = self._loop.create_task(self._reconciler.round(), name="reconciler")

    def _announce(self) -> None:
        """Renew the leases of all open calls; calls that the server does not know become known again."""
        groups: dict[int, list[_Call]] = {}
        for call in self.open.values():
            groups.setdefault(id(call.plan), []).append(call)
        for calls in groups.values():
            for start in range(0, len(calls), RENEWED_AT_ONCE):
                self._renew_leases(calls[start : start + RENEWED_AT_ONCE])

    def _renew_leases(self, calls: "list[_Call]") -> None:
        plan, scripts = calls[0].plan, self._scripts
        args = [b"EVALSHA", scripts.renew, b"%d" % len(plan.renew_keys), *plan.renew_keys]
        args += [b"%d" % scripts.lease_ms, plan.slots]
        for call in calls:
            reserved = call.reservation
            record = b"%b %b %b %d %d" % (
                call.where,
                scripts.owner,
                plan.user,
                reserved.tokens,
                reserved.hold,
            )
            args += [reserved.call_id.encode(), record, b"%d" % reserved.hold]

        def answered(reply: Reply | ValkeyError) -> None:
            if isinstance(reply, bytes):
                for call, news in zip(calls, reply, strict=True):
                    if news == ord("1"):
                        # Its tokens are in no window any more: settling must not take them out of one.
                        call.where = b"0:0:0:0:" + call.where.split(b":", 4)[4]

        self.client.call(tuple(args), answered)


class _Call:
    """One admission, and the call that comes of it."""

    __slots__ = ("last", "limiter", "plan", "reservation", "rounds", "then", "where")

    def __init__(self, limiter: Limiter, plan: Plan, reservation: Reservation, then: Then) -> None:
        self.limiter, self.plan, self.reservation, self.then = limiter, plan, reservation, then
        self.last = self.where = b""
        self.rounds = 0

    def answered(self, reply: Reply | ValkeyError) -> None:
        """The admit script's reply."""
        if type(reply) is bytes and reply[0] == OPEN_CALL:
            fields = reply.split(b" ")
            self.where = fields[1]
            self.limiter.open[self.reservation.call_id] = self
            self.then(Admitted(self.plan.headers % tuple(fields[2:])))
        else:
            self.limiter.not_admitted(self, reply)

    def settled(self, reply: Reply | ValkeyError) -> None:
        """The settle script's reply."""
        limiter = self.limiter
        limiter.settling -= 1
        if type(reply) is not int or limiter.stopping:
            limiter.settled(self, reply)

    def again(self) -> None:
        """Ask once more, now that the app is known."""
        self.limiter.client.send(with_last(self.plan.admit, self.last), self.answered)

    def give_up(self) -> None:
        """The app could not be made known."""
        self.then(LimitsUnavailable())
