"""What every call reads stays fresh: changes within a second, also when connections and servers die."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from api import snapshot as snapshot_module
from api.access import service
from api.access.directory import Directory
from api.errors import DirectoryUnavailable
from api.snapshot import Snapshot
from engine import catalogue
from ledger.ids import new_id
from ledger.prices import set_price
from tests.api.own_postgres import OwnPostgres, own_postgres

pytestmark = pytest.mark.asyncio

WITHIN = 1.0  # seconds that a change may take to reach a connected process


async def until_quiet(snapshot: Snapshot) -> None:
    """Until every change that was announced so far is loaded, and none came for a quarter of a second."""
    since = time.monotonic()
    while time.monotonic() - since < 0.25:
        await asyncio.sleep(0.01)
        if snapshot._due:
            since = time.monotonic()


async def until(look: Callable[[], object], what: str, within: float = WITHIN) -> float:
    """Seconds until it looked true; fails after `within`."""
    began = time.monotonic()
    while not look():
        assert time.monotonic() - began < within, f"within {within} s: {what}"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


@asynccontextmanager
async def running(url: str) -> AsyncIterator[Snapshot]:
    snapshot = Snapshot(url)
    await snapshot.start()
    try:
        yield snapshot
    finally:
        await snapshot.stop()


async def new_key(connection: asyncpg.Connection) -> service.ShownKey:
    organisation = await service.create_organisation(connection, f"org-{new_id()}")
    app = await service.create_app(connection, organisation.name, "app")
    return await service.create_key(connection, app=app.id, name="key")


async def sessions(connection: asyncpg.Connection, name: str) -> list[int]:
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()", name
    )
    return [row["pid"] for row in rows]


async def test_a_new_key_works_and_a_revoked_one_stops_within_a_second(database: str) -> None:
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        shown = await new_key(connection)
        key = shown.key.encode()
        await until(lambda: snapshot.directory.find(key), "the new key is known")
        access = snapshot.directory.find(key)
        assert access is not None
        assert access.app is not None
        assert access.scopes == {"chat"}
        assert len(access.app.limits) == 3
        assert access.app.budgets[0].amount == 1_000_000 * 10**12
        await service.revoke_key(connection, shown.row.id)
        await until(lambda: snapshot.directory.find(key) is None, "the revoked key is gone")
        assert await snapshot.look_up_key(key) is None
        await connection.close()


@pytest.mark.parametrize("what", ["app", "organisation"])
async def test_revoking_an_owner_stops_its_keys_within_a_second(database: str, what: str) -> None:
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        shown = await new_key(connection)
        other = await new_key(connection)
        await until(lambda: snapshot.directory.find(other.key.encode()), "the keys are known")
        assert shown.row.app is not None
        if what == "app":
            await service.revoke_app(connection, shown.row.app)
        else:
            await service.revoke_organisation(connection, shown.row.app.partition("/")[0])
        await until(lambda: snapshot.directory.find(shown.key.encode()) is None, "the key is gone")
        assert await snapshot.look_up_key(shown.key.encode()) is None
        assert snapshot.directory.find(other.key.encode()) is not None
        await connection.close()


async def test_models_and_prices_arrive_within_a_second_and_whoever_asked_is_told(database: str) -> None:
    async with running(database) as snapshot:
        told: list[bool] = []

        def breaks() -> None:
            raise RuntimeError("one listener's fault is not the next one's")

        snapshot.on_change += [breaks, lambda: told.append("chat" in snapshot.registry.models)]
        connection = await asyncpg.connect(database)
        pool = catalogue.Pool(model="chat", engine_urls=["http://127.0.0.1:8001"])
        await catalogue.add_model(connection, pool)
        await until(lambda: True in told, "the model arrived")
        now = time.time_ns() // 1000
        await set_price(connection, model="chat", prompt="0.000001", completion="0.000002")
        await until(lambda: snapshot.prices.at("chat", now + 60_000_000), "the price arrived")
        await catalogue.remove_model(connection, "chat")
        await until(lambda: "chat" not in snapshot.registry.models, "the model is gone")
        assert snapshot.connected
        await connection.close()


async def test_a_revocation_does_not_wait_for_the_next_load_of_a_large_directory(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "REST_FACTOR", 1e9)
    async with running(database) as snapshot:
        monkeypatch.setattr(snapshot_module, "REST_MAX", 60.0)
        connection = await asyncpg.connect(database)
        shown = [await new_key(connection) for _ in range(4)]
        keys = [one.key.encode() for one in shown]
        # The load that the start caused is the last one for a minute from here on.
        snapshot._directory_from = 0.0
        snapshot._announced("api_keys")
        await until(lambda: all(map(snapshot.directory.find, keys)), "the keys are known")
        directory = snapshot.directory
        await service.revoke_key(connection, shown[0].row.id)
        assert shown[1].row.app is not None
        assert shown[2].row.app is not None
        await service.revoke_app(connection, shown[1].row.app)
        await service.revoke_organisation(connection, shown[2].row.app.partition("/")[0])
        await until(lambda: not any(map(snapshot.directory.find, keys[:3])), "the revoked keys are gone")
        assert snapshot.directory.find(keys[3]) is not None
        late = await new_key(connection)
        assert await snapshot.look_up_key(late.key.encode()) is not None
        assert snapshot.directory is directory  # nothing was loaded as a whole
        pool = catalogue.Pool(model=f"m-{new_id()}", engine_urls=["http://127.0.0.1:8001"])
        await catalogue.add_model(connection, pool)
        await until(lambda: pool.model in snapshot.registry.models, "the model arrived")
        await connection.close()


async def test_a_key_that_expires_stops_without_any_news(database: str) -> None:
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        shown = await new_key(connection)
        await connection.execute(
            "UPDATE api_keys SET expires_at = clock_timestamp() + interval '0.4 s' WHERE id = $1::text::uuid",
            shown.row.id,
        )
        key = shown.key.encode()
        await until(lambda: snapshot.directory.find(key), "the key is known")
        await until(lambda: snapshot.directory.find(key) is None, "the key has expired")
        assert await snapshot.look_up_key(key) is None
        await connection.close()


async def test_a_revocation_while_the_listening_connection_is_killed_still_takes_a_second(
    database: str,
) -> None:
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        for _ in range(3):
            shown = await new_key(connection)
            key = shown.key.encode()
            await until(lambda key=key: snapshot.directory.find(key), "the key is known")  # type: ignore[misc]
            for pid in await sessions(connection, "tollgate snapshot"):
                await connection.execute("SELECT pg_terminate_backend($1)", pid)
            await service.revoke_key(connection, shown.row.id)
            await until(lambda key=key: snapshot.directory.find(key) is None, "the key is gone")  # type: ignore[misc]
            await until(lambda: snapshot.connected, "it is connected again")
        await connection.close()


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_revocation_does_not_wait_for_the_load_that_it_causes(
    database: str, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    monkeypatch.setattr(snapshot_module, "REST_FACTOR", 0.0)
    load = snapshot_module.load_directory
    may_load = asyncio.Event()
    may_load.set()

    async def long_load(connection: asyncpg.Connection, between: Any) -> Directory:
        await may_load.wait()  # as when there are a million keys
        return await load(connection, between)

    monkeypatch.setattr(snapshot_module, "load_directory", long_load)
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        kept, revoked = await new_key(connection), await new_key(connection)
        await until(lambda: snapshot.directory.find(revoked.key.encode()), "the keys are known")
        await until_quiet(snapshot)
        may_load.clear()
        if cut_off:
            for pid in await sessions(connection, "tollgate snapshot"):
                await connection.execute("SELECT pg_terminate_backend($1)", pid)
            await until(lambda: not snapshot.connected, "it knows that it is cut off")
        await service.revoke_key(connection, revoked.row.id)
        await until(lambda: snapshot.directory.find(revoked.key.encode()) is None, "the key is gone")
        assert snapshot.directory.find(kept.key.encode()) is not None
        may_load.set()
        await until(lambda: snapshot.connected and not snapshot._due, "all is loaded")
        assert snapshot.directory.find(revoked.key.encode()) is None
        await connection.close()


async def test_a_change_that_was_not_announced_is_found_by_the_poll(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "POLL_SECONDS", 0.1)
    async with running(database) as snapshot:
        connection = await asyncpg.connect(database)
        shown = await new_key(connection)
        await until(lambda: snapshot.directory.find(shown.key.encode()), "the key is known")
        await connection.execute("ALTER TABLE api_keys DISABLE TRIGGER announce_change")
        await connection.execute(
            "UPDATE api_keys SET revoked_at = now() WHERE id = $1::text::uuid", shown.row.id
        )
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("ALTER TABLE api_keys ENABLE TRIGGER announce_change")
        await until(lambda: snapshot.directory.find(shown.key.encode()) is None, "the key is gone", 10)
        await connection.close()


async def test_a_new_key_can_be_looked_up_before_the_news_has_arrived(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(database) as snapshot:
        monkeypatch.setattr(snapshot, "_announced", lambda what: None)
        connection = await asyncpg.connect(database)
        shown = await new_key(connection)
        assert snapshot.directory.find(shown.key.encode()) is None
        access = await snapshot.look_up_key(shown.key.encode())
        assert access is not None
        assert access.key_id == shown.row.id
        assert access.app is not None
        assert len(access.app.limits) == 3
        await connection.close()


@pytest.fixture(scope="module")
def _own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path_factory.mktemp("own")) as running_postgres:
        yield running_postgres


@pytest.fixture
def own(_own: OwnPostgres) -> Iterator[OwnPostgres]:
    """A server that this test may harm; it runs again for the next one."""
    yield _own
    _own.thaw()
    if _own.process is None:
        _own.start()


async def test_known_keys_outlive_postgres_and_what_changed_meanwhile_is_there_when_it_is_back(
    own: OwnPostgres,
) -> None:
    async with running(own.url) as snapshot:
        connection = await asyncpg.connect(own.url)
        kept = await new_key(connection)
        revoked = await new_key(connection)
        await until(lambda: snapshot.directory.find(revoked.key.encode()), "the keys are known")
        assert await snapshot.look_up_key(b"tg-nobody") is None

        own.kill()
        await until(lambda: not snapshot.connected, "it knows that it is cut off")
        assert snapshot.directory.find(kept.key.encode()) is not None
        assert not snapshot.stale()
        for key in (b"tg-unknown", b"tg-another"):
            with pytest.raises(DirectoryUnavailable):
                await snapshot.look_up_key(key)

        own.start()
        connection = await asyncpg.connect(own.url)
        await service.revoke_key(connection, revoked.row.id)
        await until(lambda: snapshot.directory.find(revoked.key.encode()) is None, "the key is gone")
        await until(lambda: snapshot.connected, "it is connected again")
        assert snapshot.directory.find(kept.key.encode()) is not None
        assert await snapshot.look_up_key(b"tg-unknown") is None
        await connection.close()


async def test_a_frozen_postgres_counts_as_away_and_nobody_waits_for_it_long(
    own: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "POLL_SECONDS", 0.2)
    async with running(own.url) as snapshot:
        connection = await asyncpg.connect(own.url)
        shown = await new_key(connection)
        await until(lambda: snapshot.directory.find(shown.key.encode()), "the key is known")
        assert await snapshot.look_up_key(b"tg-nobody") is None
        own.freeze()
        began = time.monotonic()
        with pytest.raises(DirectoryUnavailable):
            await snapshot.look_up_key(b"tg-unknown")
        assert time.monotonic() - began < 3
        await until(lambda: not snapshot.connected, "it knows that it is cut off", 5)
        assert snapshot.directory.find(shown.key.encode()) is not None
        own.thaw()
        await until(lambda: snapshot.connected, "it is connected again", 5)
        await until(lambda: snapshot.directory.find(shown.key.encode()), "the key is known", 5)
        connection.terminate()


async def test_cut_off_for_too_long_nothing_is_served_any_more(
    own: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "KEY_STALE_MAX", 0.3)
    async with running(own.url) as snapshot:
        assert not snapshot.stale()
        own.kill()
        await until(snapshot.stale, "it is stale", 3)
        own.start()
        await until(lambda: not snapshot.stale(), "it is fresh again", 3)


async def test_a_start_without_postgres_waits_a_while_and_catches_up_later(own: OwnPostgres) -> None:
    own.kill()
    snapshot = Snapshot(own.url)
    await snapshot.start(wait_seconds=0.2)
    assert not snapshot.connected
    assert snapshot.loaded_at is None
    with pytest.raises(DirectoryUnavailable):
        await snapshot.look_up_key(b"tg-unknown")
    own.start()
    await until(lambda: snapshot.connected, "it is connected", 3)
    await snapshot.stop()
