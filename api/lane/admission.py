"""From a whole request to a call that may run: key, ask, price, limits and hold, result cache.

A refusal here costs nothing and leaves no row.
"""

import time
from functools import partial

from api.access.directory import Access
from api.access.keys import key_from_headers
from api.errors import (
    DirectoryUnavailable,
    GatewayError,
    InvalidKey,
    InvalidRequest,
    ModelNotFound,
    NotPermitted,
    Unavailable,
)
from api.lane import body as bodies
from api.lane.call import Call, no_replica
from api.lane.charge import NOTHING
from api.limits.decisions import Admitted, Decision, Refused, Reservation
from engine.answers import replay
from ledger.errors import JournalFull

# Tokens that a chat template may add to what the body's bytes can hold: a system prompt, roles, tool use.
TEMPLATE_TOKENS = 128
TOOLS_TOKENS = 256
# No tokenizer in use makes a token of more bytes than this; a longer prompt is too long whatever it says.
TOKEN_BYTES_MAX = 256
INFINITE = 1 << 62


def begin(call: Call) -> None:
    """The body is whole and it is this call's turn on its connection."""
    lane = call.lane
    lane.in_flight.add(call)
    call.body = call.pieces[0] if len(call.pieces) == 1 else b"".join(call.pieces)
    call.pieces.clear()
    try:
        if lane.ending:
            raise Unavailable("The gateway is shutting down; call again.", "shutting_down")
        key = key_from_headers(call.headers)
        if key is None:
            raise InvalidKey
        if lane.snapshot.stale():
            raise DirectoryUnavailable
        access = lane.snapshot.directory.find(key)
        if access is None:
            lane.spawn(_look_up(call, key))
        else:
            _with_access(call, access)
    except GatewayError as error:
        call.refuse(error)
    except Exception as error:
        call.broken(error)


async def _look_up(call: Call, key: bytes) -> None:
    try:
        access = await call.lane.snapshot.look_up_key(key)
        if call.left or call.closed:
            call.end_silently()
        elif access is None:
            raise InvalidKey
        else:
            _with_access(call, access)
    except GatewayError as error:
        call.refuse(error)
    except Exception as error:
        call.broken(error)


def _with_access(call: Call, access: Access) -> None:
    lane, dialect, app = call.lane, call.dialect, access.app
    if app is None or "chat" not in access.scopes:
        raise NotPermitted("This key may not call models; use an app's key with the scope 'chat'.")
    ask = dialect.read(bodies.parse(call.body))
    model = lane.snapshot.registry.models.get(ask.model)
    if model is None:
        raise ModelNotFound(ask.model)
    if dialect.endpoint not in model.endpoints:
        raise InvalidRequest(
            f"The model '{model.name}' does not serve /v1/{dialect.endpoint}.",
            "model",
            "endpoint_not_supported",
        )
    version = lane.balancer.version(model)
    if version is None:
        raise no_replica(model)
    if any(replica.kind == "light" for replica in version.replicas):
        if ask.choices > 1:
            # It counts the tokens of the first output only, so that the rest would be free and unlimited.
            raise InvalidRequest("The light engine makes one output per call.", "n", "unsupported_value")
        dialect.refuse_media(ask.fields)
    context = model.context_length
    if context and len(call.body) > context * TOKEN_BYTES_MAX and not dialect.has_parts(ask.fields):
        raise InvalidRequest(
            f"The prompt is longer than the {context} tokens that this model reads.",
            "messages",
            "context_length_exceeded",
        )
    call.admitted_us = time.time_ns() // 1000
    price = lane.snapshot.prices.at(model.name, call.admitted_us)
    if price is None:
        raise NotPermitted(
            f"The model '{model.name}' has no price yet, so it is not served.", "model_not_priced"
        )
    call.access, call.ask, call.model, call.version, call.price = access, ask, model, version, price
    call.cap = min(ask.cap or INFINITE, model.default_max_output) if dialect.cap_fields else 0
    if ask.cap is not None and ask.cap > call.cap:
        call.extra += b"x-tollgate-max-tokens: %d\r\n" % call.cap
    bound = len(call.body) + TEMPLATE_TOKENS + (TOOLS_TOKENS if "tools" in ask.fields else 0)
    call.prompt_bound = min(bound, context * ask.prompts) if context else bound
    output = ask.choices * call.cap
    call.hold = price.bound(call.prompt_bound, ask.choices, call.cap)
    reservation = Reservation(
        call.id, app, ask.end_user, call.prompt_bound + output, call.hold, price.currency, output,
        ask.choices, price.completion,
    )  # fmt: skip
    lane.limiter.admit(reservation, partial(_admitted, call))


def _admitted(call: Call, decision: Decision) -> None:
    try:
        if isinstance(decision, Admitted):
            call.extra += decision.headers
            if call.left or call.closed:
                call.give_back()
                call.end_silently()
            else:
                _look_in_cache(call)
        elif call.left or call.closed:
            call.end_silently()
        elif isinstance(decision, Refused):
            call.extra += decision.headers
            kind = "insufficient_quota" if decision.code == "insufficient_quota" else "rate_limit_error"
            call.refuse(
                GatewayError(
                    decision.status,
                    kind,
                    decision.code,
                    decision.message,
                    retry_after=decision.retry_after_s,
                    should_retry=decision.should_retry,
                )
            )
        else:
            call.refuse(Unavailable(decision.message, "limits_unavailable", decision.retry_after_s))
    except Exception as error:
        call.broken(error)


def _look_in_cache(call: Call) -> None:
    cache, ask = call.lane.cache, call.ask
    if not call.dialect.cacheable or not cache.wanted(ask.fields, call.headers.get(b"x-tollgate-cache")):
        call.dispatch()
        return
    app = call.access.app
    assert app is not None
    call.cache_state = "miss"
    call.cache_key = cache.key(app.id, call.version.id, call.dialect.endpoint, ask.fields, call.cap)
    cache.get(call.cache_key, partial(_looked_up, call))


def _looked_up(call: Call, answer: bytes | None) -> None:
    try:
        if call.left or call.closed:
            call.give_back()
            call.end_silently()
        elif answer is None:
            call.extra += b"x-cache: miss\r\n"
            call.dispatch()
        else:
            _serve(call, answer)
    except Exception as error:
        call.broken(error)


def _serve(call: Call, answer: bytes) -> None:
    """Answer from the cache: one row, no engine, no charge."""
    ask = call.ask
    ready = replay(
        answer,
        request_id=call.id.replace("-", ""),
        created=call.admitted_us // 1_000_000,
        stream=ask.stream,
        include_usage=ask.shows_usage,
    )
    call.cache_state = "hit"
    call.first_byte_us = time.time_ns() // 1000
    opened, closed = call.open_record(None), call.close_record("completed", 200, NOTHING, "none", [], None, 0)
    try:
        call.lane.journal.both(opened, closed, partial(_send, call, ready), call.journal_failed)
    except JournalFull:
        call.journal_failed()
        return
    call.closed = True
    call.lane.limiter.settle(call.id, spent=0, tokens=0)


def _send(call: Call, ready: bytes) -> None:
    if call.left:
        call.end_silently()
        return
    try:
        call.extra += b"x-cache: hit\r\n"
        if call.ask.stream:
            call.start_stream()
            call.pass_on(ready)
            call.end_stream()
        else:
            call.reply_json(200, ready)
    except Exception as error:
        call.broken(error)
