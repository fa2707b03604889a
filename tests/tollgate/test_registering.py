"""What a start makes of the models that earlier ones have registered."""

import asyncio
import socket
from pathlib import Path

import asyncpg
import pytest

from api.access import service
from engine import catalogue
from engine.catalogue import Pool
from ledger.ids import new_id
from tollgate.supervisor.bootstrap import Owners, ensure_keys, ensure_owners, register


@pytest.mark.parametrize("ours", [True, False])
def test_an_engine_that_this_start_runs_takes_its_address_from_the_model_before(
    database: str, ours: bool
) -> None:
    before, alias, now, dead = (f"{name}-{new_id()}" for name in ("before", "alias", "now", "dead"))

    async def work(url: str) -> dict[str, str]:
        connection = await asyncpg.connect(database)
        try:
            await catalogue.add_model(connection, Pool(model=before, engine_urls=[f"{url}/v1"]))
            await catalogue.add_model(connection, Pool(model=alias, engine_urls=[url], engine_model=now))
            await catalogue.add_model(connection, Pool(model=dead, engine_urls=["http://127.0.0.1:1"]))
            lines = await register(connection, Pool(model=now, engine_urls=[url]), ours=ours)
            states = {}
            for name in (before, alias, now, dead):
                (version,) = (await catalogue.find_model(connection, name)).versions
                (replica,) = version.replicas
                states[name] = replica.state
                assert (replica.state == "off") == any(line.startswith(f"{name}:") for line in lines)
            return states
        finally:
            await connection.close()

    with socket.socket() as engine:
        engine.bind(("127.0.0.1", 0))
        engine.listen()
        states = asyncio.run(work(f"http://127.0.0.1:{engine.getsockname()[1]}"))
    # Engines that run already may serve several models.
    assert states == {before: "off" if ours else "ready", alias: "ready", now: "ready", dead: "off"}


def test_what_was_revoked_is_replaced_by_the_next_name_and_said(database: str, tmp_path: Path) -> None:
    async def start(connection: asyncpg.Connection) -> tuple[Owners, str]:
        owners = await ensure_owners(connection)
        return owners, (await ensure_keys(connection, tmp_path, owners)).app

    async def work() -> None:
        connection = await asyncpg.connect(database)
        try:
            first, key = await start(connection)
            await service.revoke_app(connection, first.app)
            second, key_then = await start(connection)
            assert key_then != key
            assert second.app != first.app
            assert f"'{second.app}' takes its place" in second.said[0]
            assert (await start(connection)) == (second, key_then)
            for owner in (second.app, second.probe):
                await service.revoke_organisation(connection, owner.partition("/")[0])
            third, _ = await start(connection)
            assert third.app.partition("/")[0] != second.app.partition("/")[0]
            assert len(third.said) == 2
        finally:
            await connection.close()

    asyncio.run(work())
