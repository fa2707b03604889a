"""Calls to write into journals: records with sound defaults, and journals of processes that are gone."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ledger.ids import new_id, time_ms
from ledger.journal.reader import Damage, Frame, JournalFile
from ledger.journal.records import Attempt, CloseRecord, OpenRecord, decode
from ledger.journal.writer import Journal

# The same in every process that writes calls for these tests.
ORGANISATION, APP, KEY, VERSION, REPLICA, PRICE = (f"00000000-0000-7000-8000-{n:012d}" for n in range(1, 7))
HOLD = 3_000_000_000  # 0.003
CHARGE = 223_000_000  # 0.000223: what `closed` costs at the price of `give_price`


def opened(call: str | None = None, **fields: Any) -> OpenRecord:
    call = call or new_id()
    return OpenRecord(
        id=call,
        organisation_id=ORGANISATION,
        app_id=APP,
        key_id=KEY,
        end_user="user-1",
        model="smollm2",
        version_id=VERSION,
        replica_id=REPLICA,
        endpoint="chat/completions",
        stream=True,
        price_id=PRICE,
        currency="USD",
        hold=HOLD,
        prompt_bound=120,
        admitted_us=time_ms(call) * 1000 if len(call) == 36 else 0,
        cache="miss",
    )._replace(**fields)


def closed(call: OpenRecord, **fields: Any) -> CloseRecord:
    return CloseRecord(
        id=call.id,
        outcome="completed",
        status=200,
        prompt_tokens=100,
        cached_tokens=10,
        completion_tokens=64,
        reasoning_tokens=4,
        usage_source="engine",
        charge=CHARGE,
        ended_us=call.admitted_us + 900_000,
        first_byte_us=call.admitted_us + 50_000,
        replica_id=REPLICA,
        version_id=VERSION,
        attempts=[attempt(call)],
        flags=[],
        error_code=None,
    )._replace(**fields)


def attempt(call: OpenRecord, **fields: Any) -> Attempt:
    began = call.admitted_us + 1000
    return Attempt("call", REPLICA, "completed", 200, 100, 10, 64, began, began + 890_000, None)._replace(
        **fields
    )


def nothing() -> None:
    """A `then` that does nothing."""


def never() -> None:
    raise AssertionError("the journal said that it failed")


def in_loop(work: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        return await work(asyncio.get_running_loop())

    return asyncio.run(run())


def write_calls(folder: Path, calls: list[OpenRecord], closes: list[CloseRecord], **options: Any) -> None:
    """A journal with these calls, as a process leaves it that stopped in order (or died: it is the same)."""

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        journal = Journal(folder, loop=loop, **options)
        for call in calls:
            journal.open(call, nothing, never)
        await asyncio.sleep(0)
        for close in closes:
            journal.close_call(close, nothing)
        await journal.stop()

    in_loop(work)


def pieces(path: Path) -> list[Frame | Damage]:
    file = JournalFile(path)
    try:
        file.owner_is_gone()
        return list(file.read())
    finally:
        file.close()


def records(folder: Path) -> list[OpenRecord | CloseRecord]:
    """All whole records in a folder, file by file."""
    return [
        decode(piece.payload)
        for path in sorted(folder.glob("*.journal"))
        for piece in pieces(path)
        if isinstance(piece, Frame)
    ]
