"""Keys that the directory does not know are asked of Postgres together, and seldom."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from api.access import lookup, service
from api.access.directory import Access
from api.access.lookup import KeyLookup
from api.errors import DirectoryUnavailable
from ledger.ids import new_id

pytestmark = pytest.mark.asyncio


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each query asked for."""
    seen: list[int] = []
    load = lookup.load_accesses

    async def counted(connection: asyncpg.Connection, digests: Sequence[bytes]) -> dict[bytes, Access]:
        seen.append(len(digests))
        return await load(connection, digests)

    monkeypatch.setattr(lookup, "load_accesses", counted)
    return seen


async def test_a_hundred_callers_with_ten_keys_are_one_query(database: str, batches: list[int]) -> None:
    keys = KeyLookup(database)
    answers = await asyncio.gather(*(keys.find(b"tg-%d" % (n % 10)) for n in range(100)))
    assert answers == [None] * 100
    assert batches == [10]
    await keys.stop()


async def test_no_such_key_is_remembered_for_a_moment(
    database: str, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "NEGATIVE_SECONDS", 0.2)
    keys = KeyLookup(database)
    for _ in range(5):
        assert await keys.find(b"tg-none") is None
    assert batches == [1]
    async with asyncio.timeout(5):
        while len(batches) < 2:
            assert await keys.find(b"tg-none") is None
            await asyncio.sleep(0.01)
    await keys.stop()


async def test_the_memory_for_bad_keys_is_bounded(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "NEGATIVE_MAX", 20)
    monkeypatch.setattr(lookup, "NEGATIVE_SECONDS", 60.0)
    keys = KeyLookup(database)
    for start in range(0, 100, 10):
        await asyncio.gather(*(keys.find(b"tg-%d" % n) for n in range(start, start + 10)))
    assert len(keys._negatives) == 20
    await keys.stop()


async def test_more_keys_at_once_than_one_query_takes_are_told_to_come_back(
    database: str, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "BATCH_MAX", 10)
    keys = KeyLookup(database)
    answers = await asyncio.gather(*(keys.find(b"tg-%d" % n) for n in range(30)), return_exceptions=True)
    assert answers[:10] == [None] * 10
    assert all(isinstance(answer, DirectoryUnavailable) for answer in answers[10:])
    assert batches == [10]
    await keys.stop()


async def test_a_caller_that_leaves_does_not_take_the_answer_from_the_others(database: str) -> None:
    connection = await asyncpg.connect(database)
    organisation = await service.create_organisation(connection, f"org-{new_id()}")
    app = await service.create_app(connection, organisation.name, "app")
    shown = await service.create_key(connection, app=app.id, name="key")
    await connection.close()
    keys = KeyLookup(database)
    leaver = asyncio.create_task(keys.find(shown.key.encode()))
    stayer = asyncio.create_task(keys.find(shown.key.encode()))
    await asyncio.sleep(0)
    leaver.cancel()
    access = await stayer
    assert access is not None
    assert access.key_id == shown.row.id
    await keys.stop()


async def test_a_killed_connection_is_replaced_without_anybody_noticing(database: str) -> None:
    keys = KeyLookup(database)
    assert await keys.find(b"tg-one") is None
    connection = await asyncpg.connect(database)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'tollgate key look-up' AND datname = current_database()"
    )
    await connection.close()
    assert await keys.find(b"tg-two") is None
    await keys.stop()


async def test_an_address_where_nobody_listens_is_unavailable_not_unknown() -> None:
    keys = KeyLookup("postgresql://u:p@127.0.0.1:1/none")
    for _ in range(3):
        with pytest.raises(DirectoryUnavailable):
            await keys.find(b"tg-one")
    await keys.stop()


async def test_stopping_answers_those_who_still_wait(database: str) -> None:
    keys = KeyLookup(database)
    waiting = asyncio.create_task(keys.find(b"tg-one"))
    await asyncio.sleep(0)
    await keys.stop()
    with pytest.raises(DirectoryUnavailable):
        await waiting
