"""One call on the lane, from its whole body to the last byte of its answer.

Phases follow each other by callbacks; none waits in a task, except for the rare look-up or count. At every
phase the caller may have left, and every way out goes through `close` once an open record was written.
"""

import time
from typing import TYPE_CHECKING

from api.access.directory import Access
from api.edge import whereabouts
from api.errors import GatewayError, InternalError, Unavailable
from api.lane import reply
from api.lane.answer import Answer, RefusedAnswer, StreamedAnswer, WholeAnswer
from api.lane.charge import NOTHING, charge, judge
from api.lane.dialects import Ask, Dialect
from api.lane.usage import Usage
from engine.registry import Model, Replica, Version
from engine.upstream import Exchange
from ledger.errors import JournalFull
from ledger.ids import new_id
from ledger.journal.records import Attempt, CloseRecord, OpenRecord
from ledger.prices import Price

if TYPE_CHECKING:
    from api.lane.lane import Lane
    from api.lane.protocol import LaneProtocol

ATTEMPTS_MAX = 2  # tries that an engine may have begun to work on; one that reached none does not count
OVERLOADED = frozenset((429, 503))  # an engine's ways to say so
# A kept connection that is closed this soon after the request, without one byte, was closing already.
STALE_SECONDS = 0.25


class NoEvent:
    """uvicorn wakes its ASGI cycle by an event; a call has nobody to wake."""

    def set(self) -> None:
        """Nothing waits."""


NO_EVENT = NoEvent()


class Call:
    """One call. uvicorn sees it in the place of its ASGI cycle (first five attributes)."""

    __slots__ = (
        "access", "admitted_us", "answer", "ask", "attempt_us", "attempts", "body", "cache_key",
        "cache_state", "cap", "chunked", "closed", "dialect", "disconnected", "exchange", "extra", "failure",
        "first_byte_us", "head_sent", "headers", "heard_at", "held_since", "hold", "id", "keep_alive",
        "lane", "left", "message_event", "model", "on_engine", "opened", "pieces", "placed", "price",
        "prompt_bound", "protocol", "replica", "request", "response_complete", "size", "tried", "turn",
        "version", "whole",
    )  # fmt: skip

    # Known once the call is admitted. cap: output tokens for each choice; hold: in 1e-12 of the currency.
    body: bytes
    cap: int
    hold: int
    prompt_bound: int
    access: Access
    ask: Ask
    model: Model
    version: Version
    price: Price

    def __init__(
        self,
        protocol: "LaneProtocol",
        lane: "Lane",
        dialect: Dialect,
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool,
        chunked: bool,
    ) -> None:
        self.response_complete = self.disconnected = False
        self.message_event = NO_EVENT
        self.keep_alive = keep_alive
        self.protocol, self.lane, self.dialect, self.headers = protocol, lane, dialect, headers
        self.chunked = chunked  # the caller reads HTTP/1.1
        self.pieces: list[bytes] = []
        self.size = 0
        self.id = new_id()
        self.whole = self.turn = False  # the body is whole; it is this call's turn on its connection
        self.opened = self.closed = self.left = self.head_sent = self.placed = self.on_engine = False
        self.exchange: Exchange | None = None
        self.answer: Answer | None = None
        self.failure: GatewayError | None = None  # what the caller is told in the place of the answer
        self.replica: Replica | None = None
        self.attempts: list[Attempt] = []
        self.tried: list[str] = []
        self.first_byte_us: int | None = None
        self.cache_key: bytes | None = None
        self.cache_state = "off"
        # Header lines that come up on the way; Anthropic's clients know the id by another name.
        self.extra = b"request-id: %b\r\n" % self.id.encode() if dialect.anthropic else b""
        self.request: tuple[str, bytes] = ("", b"")
        self.heard_at = lane.loop.time()
        self.held_since = 0.0  # since when the caller has not taken what is ready for it; 0: it keeps up
        self.admitted_us = 0

    # The journal, and the engine

    def dispatch(self) -> None:
        replica = self.lane.balancer.replica(self.version, self.lane.loop.time())
        if replica is None:
            self.give_back()
            self.refuse(no_replica(self.model))
            return
        self._place(replica)
        try:
            self.lane.journal.open(self.open_record(replica.id), self._opened, self.journal_failed)
        except JournalFull:
            self.journal_failed()

    def _place(self, replica: Replica) -> None:
        """It counts as a call on this replica from now on, not from when it is sent: calls that come together
        would else all see the same replica as the one with the fewest."""
        self.replica = replica
        self.placed = True
        replica.in_flight += 1

    def _take_back(self) -> None:
        if self.placed and self.replica is not None:
            self.placed = False
            self.replica.in_flight -= 1

    def journal_failed(self) -> None:
        """Never an unbilled call: without a record nothing goes to the engine."""
        self._take_back()
        self.give_back()
        self.refuse(
            Unavailable(
                "Usage cannot be recorded at the moment; try again shortly.", "journal_unavailable", 5
            )
        )

    def _opened(self) -> None:
        self.opened = True
        try:
            self._after_open()
        except Exception as error:
            self.broken(error)

    def _after_open(self) -> None:
        if self.closed:
            # It ended between the record and this turn: the books must hear of that too.
            self.closed, self.left = False, True
            self.close("shutdown", 0, NOTHING, "none", "shutting_down")
        elif self.left:
            self.close("caller_left", 0, NOTHING, "none", None)
        else:
            self._send()

    def _send(self) -> None:
        replica = self.replica
        assert replica is not None
        if self.request[0] != replica.engine_model:
            edited = self.dialect.edits(self.ask, self.cap, replica.engine_model).apply(self.body)
            self.request = (replica.engine_model, edited)
        body = self.request[1]
        self.answer = None
        self.attempt_us = time.time_ns() // 1000
        self.heard_at = self.lane.loop.time()
        self.on_engine = True
        upstream = self.lane.upstreams.at(replica.host, replica.port)
        head = upstream.heads.get((replica.base_path, self.dialect.path))
        if head is None:
            head = upstream.heads[replica.base_path, self.dialect.path] = request_head(replica, self.dialect)
        request = b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (head, self.id.encode(), len(body), body)
        self.exchange = upstream.send(request, self)
        if self.protocol.flow.write_paused:
            self.pause()  # the connection was, before there was anything to hold back

    # What the engine says (engine.upstream.Listener)

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.heard_at = self.lane.loop.time()
        if status != 200:
            self.answer = RefusedAnswer(self, status, headers)
        elif self.ask.stream and any(
            n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers
        ):
            self.answer = StreamedAnswer(self)
        else:
            self.answer = WholeAnswer(self)

    def upstream_body(self, data: bytes) -> None:
        self.heard_at = self.lane.loop.time()
        answer = self.answer
        if answer is not None:
            try:
                answer.body(data)
            except Exception as error:
                self.broken(error)

    def upstream_end(self) -> None:
        self.exchange = None
        try:
            if self.answer is None:
                self.upstream_lost("the engine sent no answer", True)
            else:
                self.answer.end()
        except Exception as error:
            self.broken(error)

    def upstream_lost(self, reason: str, sent: bool) -> None:
        exchange, self.exchange = self.exchange, None
        assert self.replica is not None
        stale = (
            sent and exchange is not None and exchange.reused and self.answer is None
            and self.lane.loop.time() - self.heard_at < STALE_SECONDS
        )  # fmt: skip
        if not sent:
            self.lane.balancer.unreachable(self.replica, self.lane.loop.time())
        self.engine_failed(
            "engine_unreachable" if not sent else "engine_lost", reason, worked=sent, stale=stale
        )

    def engine_failed(
        self, code: str, reason: str, *, worked: bool, stale: bool = False, status: int = 0
    ) -> None:
        """This attempt came to nothing. Another replica may try while the caller has not got a byte."""
        self._leave_engine("engine_failed", status, code)
        assert self.replica is not None
        if stale:
            self.lane.upstreams.at(self.replica.host, self.replica.port).drop_idle()
        else:
            self.tried.append(self.replica.id)
        worked_on = sum(1 for attempt in self.attempts if attempt.error_code != "engine_unreachable")
        if not self.head_sent and not self.left and not self.lane.ending and worked_on < ATTEMPTS_MAX:
            again = self.lane.balancer.replica(self.version, self.lane.loop.time(), self.tried)
            if again is not None:
                self._place(again)
                self._send()
                return
        self.lane.log.warning("call %s failed at replica %s: %s", self.id, self.replica.name, reason)
        error: GatewayError
        if status in OVERLOADED:
            error = Unavailable("The engines of this model are overloaded; try again.", "engine_overloaded")
        elif worked:
            error = GatewayError(502, "server_error", code, "The engine failed on this call; try again.")
        else:
            error = Unavailable("No engine for this model can be reached at the moment.", code)
        self.fail("engine_failed", error)

    def _leave_engine(self, outcome: str, status: int, code: str | None, usage: Usage = NOTHING) -> None:
        """Note the attempt that ends here, and free the replica."""
        self._take_back()
        if not self.on_engine or self.replica is None:
            return
        self.on_engine = False
        kind = "call" if not self.attempts else "failover"
        self.attempts.append(
            Attempt(kind, self.replica.id, outcome, status, usage.prompt, usage.cached, usage.completion,
                    self.attempt_us, time.time_ns() // 1000, code)
        )  # fmt: skip

    # Ways to end

    def complete(self, usage: Usage, source: str) -> None:
        """The answer is whole: the books first, then its last bytes."""
        assert self.replica is not None
        self.lane.balancer.reachable(self.replica)
        self.close("completed", 200, usage, source, None)

    def close(self, outcome: str, status: int, usage: Usage, source: str, code: str | None,
              flags: list[str] | None = None) -> None:  # fmt: skip
        """Write the close record, then `_closed_in_books`. Only the first close counts."""
        if self.closed:
            return
        self.closed = True
        judged = judge(usage, self.prompt_bound, self.ask.choices * self.cap)
        self._leave_engine(outcome, status, code, judged.usage)
        spent = charge(self.price, outcome, judged.usage)
        record = self.close_record(
            outcome, status, judged.usage, source, judged.flags + (flags or []), code, spent
        )
        self.lane.journal.close_call(record, self._closed_in_books)
        self.lane.limiter.settle(self.id, spent=spent, tokens=judged.usage.prompt + judged.usage.completion)

    def _closed_in_books(self) -> None:
        try:
            if self.left:
                self.end_silently()
            elif self.failure is not None:
                self._tell(self.failure)
            elif self.answer is not None:
                self.answer.finish()
        except Exception as error:
            self.broken(error)

    def fail(self, outcome: str, error: GatewayError) -> None:
        """End with an error that the caller sees. Nothing is charged."""
        if self.exchange is not None:
            self.exchange.abort()
            self.exchange = None
        usage, source = self.answer.so_far() if self.answer is not None else (NOTHING, "none")
        self.failure = error
        if self.opened and not self.closed:
            self.close(outcome, error.status, usage, source, error.code)
        else:
            self.closed = True
            self._tell(error)

    def _tell(self, error: GatewayError) -> None:
        """The error as the reply, or as the last event of a stream that has begun."""
        if self.head_sent and not self.left and not self.response_complete:
            self.pass_on(reply.error_event(error, self.dialect, self.id))
            self.end_stream(keep=False)
        else:
            self.refuse(error)

    def caller_left(self) -> None:
        """The caller's connection is gone. What was delivered is counted and charged."""
        self.left = True
        if self.closed or not self.opened or not self.on_engine:
            return
        if self.exchange is not None:
            self.exchange.abort()
            self.exchange = None
        answer = self.answer
        if answer is not None:
            usage, source = answer.so_far()
            if source == "engine":
                self.close("caller_left", 0, usage, source, None)
                return
        self.lane.spawn(self._count_and_close())

    async def _count_and_close(self) -> None:
        """The engine did not say what a caller that left has got: its tokenizer does."""
        assert self.replica is not None
        text, events = self.answer.delivered() if self.answer is not None else ("", 0)
        usage, flags = await self.lane.counter.count(
            self.replica, self.dialect.endpoint, self.ask.fields, text, events, len(self.body)
        )
        if self.model.context_length and usage.prompt > self.model.context_length:
            # The engine would have refused it: nothing ran.
            usage, flags = NOTHING, [*flags, "prompt_too_long"]
        self.close("caller_left", 0, usage, "counted", None, flags)

    def timed_out(self) -> None:
        self._leave_engine("timed_out", 0, "engine_timeout")
        self.fail(
            "timed_out",
            GatewayError(
                504, "server_error", "engine_timeout", "The engine did not answer in time; try again."
            ),
        )

    def shut_down(self) -> None:
        """The process ends before this call could: say so, and book it."""
        self.keep_alive = False
        if not self.closed and not self.left:  # for one whose caller left, the count is under way
            self._leave_engine("shutdown", 0, "shutting_down")
            if not self.opened:
                self.give_back()
            self.fail("shutdown", Unavailable("The gateway is shutting down; call again.", "shutting_down"))

    def give_back(self) -> None:
        """The call comes to nothing before it began: it counts against no limit."""
        self.lane.limiter.withdraw(self.id)

    def broken(self, error: Exception) -> None:
        """A fault of ours: logged by its place, booked as one, told without detail."""
        self.lane.log.error("call %s met a fault: %s", self.id, whereabouts(error))
        self._leave_engine("engine_failed", 0, "internal_error")
        if not self.opened and self.admitted_us and not self.closed:
            self.give_back()
        self.keep_alive = False
        self.fail("engine_failed", InternalError())

    # What the caller gets

    def refuse(self, error: GatewayError) -> None:
        if self.left or self.response_complete:
            self.end_silently()
            return
        body = reply.error_body(error, self.dialect, self.id)
        self.extra += reply.error_extra(error)
        self.reply_json(error.status, body)

    def reply_json(self, status: int, body: bytes) -> None:
        if self.lane.ending:
            self.keep_alive = False
        self.protocol.write(
            reply.json_reply(self.lane.common, status, body, self.id, self.extra, keep_alive=self.keep_alive)
        )
        self._end(self.keep_alive)

    def start_stream(self) -> None:
        self.head_sent = True
        if self.first_byte_us is None:
            self.first_byte_us = time.time_ns() // 1000
        self.protocol.write(reply.stream_head(self.lane.common, self.id, self.extra, chunked=self.chunked))

    def pass_on(self, data: bytes) -> None:
        self.protocol.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end_stream(self, *, keep: bool = True) -> None:
        if self.chunked:
            self.protocol.write(reply.LAST_CHUNK)
        self._end(keep and self.chunked and self.keep_alive and not self.lane.ending)

    def end_silently(self) -> None:
        """Nobody is there to be answered."""
        self._end(False)

    def _end(self, keep_alive: bool) -> None:
        if self.response_complete:
            return
        self.response_complete = True
        self.lane.in_flight.discard(self)
        self.protocol.call_ended(self, keep_alive)

    def pause(self) -> None:
        """The caller does not keep up: the engine is held back."""
        if self.exchange is not None:
            self.exchange.pause()
            self.held_since = self.lane.loop.time()

    def resume(self) -> None:
        self.held_since = 0.0
        self.heard_at = self.lane.loop.time()  # it was not the engine that was silent
        if self.exchange is not None:
            self.exchange.resume()

    # Records

    def open_record(self, replica_id: str | None) -> OpenRecord:
        access, app = self.access, self.access.app
        assert app is not None
        return OpenRecord(
            self.id, app.organisation_id, app.id, access.key_id, self.ask.end_user, self.model.name,
            self.version.id, replica_id, self.dialect.endpoint, self.ask.stream, self.price.id,
            self.price.currency, self.hold, self.prompt_bound, self.admitted_us, self.cache_state,
        )  # fmt: skip

    def close_record(self, outcome: str, status: int, usage: Usage, source: str, flags: list[str],
                      code: str | None, spent: int = 0) -> CloseRecord:  # fmt: skip
        return CloseRecord(
            self.id, outcome, status, usage.prompt, usage.cached, usage.completion, usage.reasoning, source,
            spent, time.time_ns() // 1000, self.first_byte_us,
            self.replica.id if self.replica is not None else None, self.version.id, self.attempts, flags,
            code,
        )  # fmt: skip


def no_replica(model: Model) -> Unavailable:
    return Unavailable(f"No replica of '{model.name}' is ready; try again shortly.", "model_not_ready")


def request_head(replica: Replica, dialect: Dialect) -> bytes:
    """The head of a request to an engine, up to the call's id. None of the caller's own headers is in it."""
    return b"POST %b%b HTTP/1.1\r\nhost: %b:%d\r\n%b" % (
        replica.base_path.encode(),
        dialect.path,
        replica.host.encode(),
        replica.port,
        b"content-type: application/json\r\naccept: */*\r\nx-request-id: ",
    )
