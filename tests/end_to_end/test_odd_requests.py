"""Malformed and odd requests: refused with 4xx, or seen by the engine once, as a strict parser reads them."""

import json
import os

from tests.caller import BrokenOff, Caller
from tests.end_to_end import odd_requests
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import ScriptedEngine
from tests.gateway import App, Gateway

COUNT = int(os.environ.get("ODD_REQUESTS", "600"))
SEED = int(os.environ.get("ODD_SEED", "1"))
ANSWERED = 5.0  # seconds that an answer to a whole request may take
INCOMPLETE = 0.02  # seconds that a request without an end is given to be refused


def test_odd_requests_are_refused_or_reach_the_engine_once_as_a_strict_parser_reads_them(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    engine.always(lambda _: [wire.reply(wire.chat_answer("ok"))])
    before, served, wrong = 0, 0, []
    for number in range(COUNT):
        raw = odd_requests.make(number, SEED, app.key)
        expected = odd_requests.as_h11_reads_it(raw)
        status = answer_to(gateway, raw, ANSWERED if expected is not None else INCOMPLETE)
        got = [received.body for received in engine.requests()[before:]]
        before += len(got)
        served += len(got)
        if not is_right(status, got, expected):
            wrong.append(f"{number}: {status}, engine got {got}: {raw[:400]!r}")
    assert not wrong, f"{len(wrong)} of {COUNT}, seed {SEED}:\n" + "\n".join(wrong[:10])
    assert served > COUNT // 10
    # The process is well, and the books have each call that was served.
    with Caller(gateway) as caller:
        assert (
            caller.ask(app, {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}).status
            == 200
        )
    app.usage_rows(served + 1)


def answer_to(gateway: Gateway, raw: bytes, patience: float) -> int | None:
    """The status; None when the connection was closed, or stays open for the rest of the request."""
    with Caller(gateway) as caller:
        caller.sock.settimeout(patience)
        try:
            caller.send(raw)
            return caller.read_reply().status
        except (BrokenOff, TimeoutError, BrokenPipeError, ConnectionResetError):
            return None


def is_right(status: int | None, got: list[bytes], expected: bytes | None) -> bool:
    if got:
        return status == 200 and len(got) == 1 and expected is not None and same(got[0], expected)
    if expected is None:
        return status is None or 400 <= status < 500
    return status is not None and 400 <= status < 500


def same(got: bytes, expected: bytes) -> bool:
    """Equal, or with the one edit that is needed when the change of a byte took `max_tokens` out."""
    if got == expected:
        return True
    fields: dict[str, object] = json.loads(got)
    return fields.pop("max_tokens", None) == 256 and fields == json.loads(expected)
