"""Models, versions and replicas as the lane reads them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
import pytest

from engine.catalogue import (
    Pool,
    add_model,
    add_replica,
    add_version,
    change_replica,
    change_version,
    put_model,
    remove_model,
    remove_replica,
    remove_version,
)
from engine.errors import DuplicateName, InvalidSetting, NotRegistered
from engine.registry import Registry, load_registry, split_engine_url

T = TypeVar("T")


@pytest.fixture
def run(database: str) -> Callable[[Callable[[asyncpg.Connection], Awaitable[T]]], T]:
    """Runs work on a connection, in a transaction that is undone."""

    def runner(work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        async def inside() -> T:
            connection = await asyncpg.connect(database)
            try:
                async with connection.transaction():
                    result = await work(connection)
                    raise Undo(result)
            except Undo as undo:
                return undo.result  # type: ignore[no-any-return]
            finally:
                await connection.close()

        return asyncio.run(inside())

    return runner


class Undo(Exception):
    def __init__(self, result: object) -> None:
        self.result = result


Run = Callable[[Callable[[asyncpg.Connection], Awaitable[T]]], T]
TWO = Pool(model="chat", engine_urls=["http://127.0.0.1:8001", "http://127.0.0.1:8002/v1"], slots=4)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:8001", ("127.0.0.1", 8001, "")),
        ("http://127.0.0.1:8001/", ("127.0.0.1", 8001, "")),
        ("http://Engine.local/v1", ("engine.local", 80, "")),
        ("http://h:1/v1/", ("h", 1, "")),
        ("http://h:1/llm/v1", ("h", 1, "/llm")),
        ("http://h:1/llm", ("h", 1, "/llm")),
        ("http://h:1/xv1", ("h", 1, "/xv1")),
        ("http://[::1]:8001/v1", ("::1", 8001, "")),
        (" http://h:1 ", ("h", 1, "")),
    ],
)
def test_an_engines_address_is_taken_with_or_without_v1(url: str, parts: tuple[str, int, str]) -> None:
    assert split_engine_url(url) == parts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8001",
        "https://h",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://h:0",
        "http://h:x",
        "http://user:secret@h:1",
        "http://user@h:1",
        "http://h:1/?key=secret",
        "http://h:1/#secret",
        "http://h:1/a b",
        "http://h:1/a\r\nx: y",
        "http://hé:1",
    ],
)
def test_an_engines_address_that_cannot_be_used_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        split_engine_url(url)
    assert "secret" not in str(refusal.value)
    assert refusal.value.field == "url"


def test_a_registry_holds_models_with_versions_and_replicas(run: Run[Registry]) -> None:
    async def work(connection: asyncpg.Connection) -> Registry:
        await add_model(connection, TWO)
        await add_version(connection, "chat", "v2", weight=0)
        return await load_registry(connection, None)

    model = run(work).models["chat"]
    assert [version.name for version in model.versions] == ["v1", "v2"]
    first, second = model.versions
    assert (first.weight, second.weight) == (100, 0)
    assert second.replicas == []
    assert [(r.name, r.host, r.port, r.base_path) for r in first.replicas] == [
        ("r1", "127.0.0.1", 8001, ""),
        ("r2", "127.0.0.1", 8002, ""),
    ]
    replica = first.replicas[0]
    assert (replica.engine_model, replica.slots, replica.state) == ("chat", 4, "ready")
    assert replica.version is first
    assert first.model is model
    assert model.endpoints == {"chat/completions", "completions"}


def test_a_replica_lives_on_across_loads_while_id_and_address_stay(
    run: Run[tuple[Registry, Registry, Registry]],
) -> None:
    async def work(connection: asyncpg.Connection) -> tuple[Registry, Registry, Registry]:
        await add_model(connection, TWO)
        before = await load_registry(connection, None)
        one = before.models["chat"].versions[0].replicas[0]
        one.in_flight = 3
        await change_replica(connection, one.id, state="draining", slots=9)
        after = await load_registry(connection, before)
        moved = Pool(model="chat", engine_urls=["http://127.0.0.1:9001", TWO.engine_urls[1]], slots=4)
        await put_model(connection, moved)
        return before, after, await load_registry(connection, after)

    before, after, moved = run(work)
    old = before.models["chat"].versions[0].replicas
    new = after.models["chat"].versions[0].replicas
    latest = moved.models["chat"].versions[0].replicas
    assert new[0] is old[0]
    assert (new[0].in_flight, new[0].state, new[0].slots) == (3, "draining", 9)
    assert new[0].version is after.models["chat"].versions[0]
    assert latest[0] is not old[0]  # another address: nothing runs there yet
    assert (latest[0].id, latest[0].port, latest[0].in_flight) == (old[0].id, 9001, 0)
    assert latest[1] is old[1]


def test_one_row_that_cannot_be_used_does_not_keep_the_others_away(
    run: Run[Registry], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(connection: asyncpg.Connection) -> Registry:
        await add_model(connection, TWO)
        await connection.execute("UPDATE replicas SET url = 'http://u:secret@h' WHERE name = 'r1'")
        return await load_registry(connection, None)

    with caplog.at_level(logging.DEBUG):
        model = run(work).models["chat"]
    assert [replica.name for replica in model.versions[0].replicas] == ["r2"]
    assert "r1 of chat is left out" in caplog.text
    assert "secret" not in caplog.text


def test_the_same_pool_put_again_changes_nothing_and_a_smaller_one_drops_replicas(
    run: Run[list[list[str]]],
) -> None:
    async def ids(connection: asyncpg.Connection) -> list[str]:
        model = (await load_registry(connection, None)).models["chat"]
        return [model.id, model.versions[0].id, *(replica.id for replica in model.versions[0].replicas)]

    async def work(connection: asyncpg.Connection) -> list[list[str]]:
        seen = []
        for pool in (TWO, TWO, Pool(model="chat", engine_urls=TWO.engine_urls[:1], slots=4)):
            await put_model(connection, pool)
            seen.append(await ids(connection))
        return seen

    first, again, smaller = run(work)
    assert again == first
    assert smaller == first[:3]


@pytest.mark.parametrize(
    ("pool", "field"),
    [
        (Pool(model="", engine_urls=["http://h"]), "name"),
        (Pool(model="a//b", engine_urls=["http://h"]), "name"),
        (Pool(model="a/", engine_urls=["http://h"]), "name"),
        (Pool(model="a b", engine_urls=["http://h"]), "name"),
        (Pool(model="a\0", engine_urls=["http://h"]), "name"),
        (Pool(model="a", engine_urls=[]), "engine_urls"),
        (Pool(model="a", engine_urls=["http://h", "http://h/v1"]), "engine_urls"),
        (Pool(model="a", engine_urls=["http://h"], kind="best"), "kind"),
        (Pool(model="a", engine_urls=["http://h"], slots=0), "slots"),
        (Pool(model="a", engine_urls=["http://h"], weight=-1), "weight"),
        (Pool(model="a", engine_urls=["http://h"], default_max_output=0), "default_max_output"),
        (Pool(model="a", engine_urls=["http://h"], context_length=0), "context_length"),
        (Pool(model="a", engine_urls=["http://h"], endpoints=["chat"]), "endpoints"),
        (Pool(model="a", engine_urls=["http://h"], endpoints=[]), "endpoints"),
        (Pool(model="a", engine_urls=["http://h"], engine_model="x\n"), "engine_model"),
    ],
)
def test_a_wish_that_cannot_be_met_names_its_field(run: Run[None], pool: Pool, field: str) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        with pytest.raises((InvalidSetting, DuplicateName)) as refusal:
            await add_model(connection, pool)
        assert refusal.value.field == field
        assert (await load_registry(connection, None)).models == {}

    run(work)


def test_doubles_and_strangers_are_refused(run: Run[None]) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        model = await add_model(connection, TWO)
        version = model.versions[0]
        with pytest.raises(DuplicateName):
            await add_model(connection, TWO)
        with pytest.raises(DuplicateName):
            await add_version(connection, "chat", "v1")
        with pytest.raises(DuplicateName):
            await add_replica(connection, version.id, url="http://127.0.0.1:8001/v1")
        with pytest.raises(DuplicateName):
            await add_replica(connection, version.id, url="http://h", name="r1")
        for stranger in ("chat", version.id[::-1], "\0", "", model.id):
            with pytest.raises(NotRegistered):
                await change_version(connection, stranger, 1)
            with pytest.raises(NotRegistered):
                await change_replica(connection, stranger, slots=1)
        with pytest.raises(NotRegistered):
            await remove_model(connection, "nobody")

    run(work)


def test_what_is_removed_is_gone(run: Run[list[int]]) -> None:
    async def count(connection: asyncpg.Connection) -> int:
        return len((await load_registry(connection, None)).replicas())

    async def work(connection: asyncpg.Connection) -> list[int]:
        model = await add_model(connection, TWO)
        counts = [await count(connection)]
        third = await add_replica(connection, model.versions[0].id, url="http://127.0.0.1:8003")
        assert third.name == "r3"
        assert third.engine_model == "chat"
        counts.append(await count(connection))
        await remove_replica(connection, third.id)
        counts.append(await count(connection))
        second = await add_version(connection, model.id, "v2")
        await add_replica(connection, second.id, url="http://127.0.0.1:8001")
        counts.append(await count(connection))
        await remove_version(connection, second.id)
        counts.append(await count(connection))
        await remove_model(connection, "chat")
        counts.append(await count(connection))
        return counts

    assert run(work) == [2, 3, 2, 3, 2, 0]
