"""Real calls, from the caller's bytes through journal and drainer, prove themselves in the books.

The database is the shared gateway's: what other tests called through it must be right as well.
"""

import asyncio
from decimal import Decimal
from typing import Any

import asyncpg

from ledger.verify import Report, verify
from tests.caller import Caller, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Close, Hold, ScriptedEngine
from tests.gateway import App, Gateway

ENDING = wire.chunk(wire.finish()) + wire.chunk(wire.usage(10, 5, 4)) + wire.chunk(wire.DONE) + b"0\r\n\r\n"
BEGINNING = wire.stream_head() + wire.chunk(wire.role()) + wire.chunk(wire.text("w0 "))


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}


def proof(gateway: Gateway) -> Report:
    async def main() -> Report:
        connection = await asyncpg.connect(gateway.database_url)
        try:
            return await verify(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def test_calls_of_every_ending_are_clean_in_the_books(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    engine.script(BEGINNING + ENDING)
    with Caller(gateway) as caller:  # completed
        assert caller.ask(app, ask()).status == 200
    engine.script(BEGINNING + ENDING)
    for _ in range(2):  # completed, then a cache hit
        with Caller(gateway) as caller:
            assert caller.ask(app, ask(temperature=0, seed=7)).status == 200
    engine.script(BEGINNING, Close())
    with Caller(gateway) as caller:  # engine_failed
        caller.send(request(app, ask()))
        caller.read_head()
        caller.read_until(b'"error"')
    engine.script(BEGINNING, Hold())
    with Caller(gateway) as caller:  # caller_left
        caller.send(request(app, ask()))
        caller.read_head()
        caller.read_until(wire.text("w0 "))
    rows = app.usage_rows(5)
    assert [row["outcome"] for row in rows] == [
        "completed",
        "completed",
        "completed",
        "engine_failed",
        "caller_left",
    ]
    assert [row["cache"] for row in rows][1:3] == ["miss", "hit"]
    each = gateway.price.charge(10, 5, 4)
    assert [row["charge"] for row in rows][:4] == [each, each, Decimal(0), Decimal(0)]
    report = proof(gateway)
    assert report.clean, [finding for finding in report.findings if finding.faults]
    assert report.counts.with_more == 0
    assert report.counts.charged_by_other_outcome["caller_left"] >= 1
