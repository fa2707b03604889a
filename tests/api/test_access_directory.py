"""Keys with their apps' limits and budgets, as loaded from the database."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256

import asyncpg
import pytest

from api.access import directory, service
from api.access.directory import Access, Budget, Directory, Limit, load_accesses, load_directory
from api.access.repository import BudgetRow
from api.errors import Conflict, GatewayError, InvalidRequest, NotFound
from ledger.ids import new_id
from tests.api.served_app import in_database

Work = Callable[[asyncpg.Connection], Awaitable[None]]


def in_new_app(database: str, work: Callable[[asyncpg.Connection, str], Awaitable[None]]) -> None:
    async def inside(connection: asyncpg.Connection) -> None:
        organisation = await service.create_organisation(connection, f"org-{new_id()}")
        await service.create_app(connection, organisation.name, "app")
        await work(connection, f"{organisation.name}/app")

    in_database(database, inside)


def test_a_fresh_app_has_limits_and_a_hard_budget_too_high_to_refuse(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        shown = await service.create_key(connection, app=app, name="key")
        access = (await load_directory(connection)).find(shown.key.encode())
        assert access is not None
        assert access.app is not None
        assert set(access.app.limits) == {
            Limit("app", "requests", "minute", 1_000_000),
            Limit("app", "tokens", "minute", 1_000_000_000),
            Limit("app", "concurrency", "none", 10_000),
        }
        assert access.app.budgets == (Budget("app", "total", 10**6 * 10**12, "USD", True),)
        assert access.expires_us is None

    in_new_app(database, work)


def test_one_key_alone_is_loaded_as_in_the_whole_directory(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        keys = [
            await service.create_key(connection, app=app, name="plain"),
            await service.create_key(
                connection, app=app, name="expiring", expires_at=datetime.now(UTC) + timedelta(days=1)
            ),
            await service.create_key(connection, app=None, name="admin"),
        ]
        whole = await load_directory(connection)
        digests = [sha256(shown.key.encode()).digest() for shown in keys]
        some = await load_accesses(connection, [*digests, b"\0" * 32])
        assert some == {digest: whole.accesses[digest] for digest in digests}
        assert some[digests[2]].app is None
        assert some[digests[2]].scopes == {"admin"}
        expires_us = some[digests[1]].expires_us
        assert expires_us is not None
        assert keys[1].row.expires_at is not None
        assert expires_us == pytest.approx(keys[1].row.expires_at.timestamp() * 1e6, abs=1)

    in_new_app(database, work)


def test_a_directory_is_read_page_by_page_and_whole(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        monkeypatch.setattr(directory, "PAGE", 2)
        gone = await service.create_app(connection, app.partition("/")[0], "gone")
        for n in range(5):
            await service.create_key(connection, app=gone.id, name=f"gone {n}")
        kept = [await service.create_key(connection, app=app, name=str(n)) for n in range(5)]
        await service.revoke_app(connection, gone.id)
        sizes: list[int] = []

        async def between(accesses: dict[bytes, Access]) -> None:
            sizes.append(len(accesses))

        whole = await load_directory(connection, between)
        assert all(whole.find(shown.key.encode()) for shown in kept)
        assert sizes == sorted(sizes)
        assert len(sizes) >= 5  # pages of nothing but revoked keys do not end the load
        names = {access.app.name for access in whole.accesses.values() if access.app is not None}
        assert "gone" not in names

    in_new_app(database, work)


def test_limits_and_budgets_are_replaced_as_a_whole_and_exactly(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        shown = await service.create_key(connection, app=app, name="key")
        await service.replace_limits(connection, app, [Limit("end_user", "tokens", "day", 7)])
        amount = Decimal("99999999999999999999999999.999999999999")
        await service.replace_budgets(connection, app, [BudgetRow("app", "month", amount, "EUR", False)])
        access = (await load_directory(connection)).find(shown.key.encode())
        assert access is not None
        assert access.app is not None
        assert access.app.limits == (Limit("end_user", "tokens", "day", 7),)
        assert access.app.budgets == (Budget("app", "month", 10**38 - 1, "EUR", False),)
        await service.replace_limits(connection, app, [])
        await service.replace_budgets(connection, app, [])
        access = (await load_directory(connection)).find(shown.key.encode())
        assert access is not None
        assert access.app is not None
        assert (access.app.limits, access.app.budgets) == ((), ())

    in_new_app(database, work)


def test_names_that_are_taken_or_cannot_be_are_refused(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        organisation = app.partition("/")[0]
        with pytest.raises(Conflict):
            await service.create_organisation(connection, organisation)
        with pytest.raises(Conflict):
            await service.create_app(connection, organisation, "app")
        with pytest.raises(NotFound):
            await service.create_app(connection, "nobody", "app")
        for name in ("", "a b", "a/b", "-a", "é", "a\0", "x" * 64, "a\n"):
            with pytest.raises(InvalidRequest):
                await service.create_organisation(connection, name)
            with pytest.raises(InvalidRequest):
                await service.create_app(connection, organisation, name)
        for name in ("", " ", "a\0", "x" * 65, "a\nb"):
            with pytest.raises(InvalidRequest):
                await service.create_key(connection, app=app, name=name)

    in_new_app(database, work)


@pytest.mark.parametrize("scopes", [[], ["admin"], ["chat", "admin"], ["everything"]])
def test_an_apps_key_takes_no_scope_beyond_its_own(database: str, scopes: list[str]) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        with pytest.raises(InvalidRequest):
            await service.create_key(connection, app=app, name="key", scopes=scopes)

    in_new_app(database, work)


def test_a_key_cannot_expire_in_the_past_or_at_a_time_without_zone(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        for time in (datetime.now(UTC) - timedelta(seconds=1), datetime.now() + timedelta(days=1)):
            with pytest.raises(InvalidRequest):
                await service.create_key(connection, app=app, name="key", expires_at=time)

    in_new_app(database, work)


def test_revoking_is_for_good_and_twice_is_once(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        shown = await service.create_key(connection, app=app, name="key")
        first = await service.revoke_key(connection, shown.row.prefix)
        again = await service.revoke_key(connection, shown.row.id)
        assert first.revoked_at is not None
        assert again == first
        revoked = await service.revoke_app(connection, app)
        assert await service.revoke_app(connection, revoked.id) == revoked
        with pytest.raises(Conflict):
            await service.create_key(connection, app=app, name="late")
        organisation = app.partition("/")[0]
        await service.revoke_organisation(connection, organisation)
        with pytest.raises(Conflict):
            await service.create_app(connection, organisation, "late")

    in_new_app(database, work)


def test_a_prefix_that_two_live_keys_share_names_neither(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        one = await service.create_key(connection, app=app, name="one")
        two = await service.create_key(connection, app=app, name="two")
        await connection.execute(
            "UPDATE api_keys SET prefix = 'tg-twins' WHERE id = ANY($1::text[]::uuid[])",
            [one.row.id, two.row.id],
        )
        with pytest.raises(Conflict):
            await service.revoke_key(connection, "tg-twins")
        await service.revoke_key(connection, one.row.id)
        assert (await service.revoke_key(connection, "tg-twins")).id == two.row.id

    in_new_app(database, work)


@pytest.mark.parametrize("stranger", ["", "nobody", "a/b", "\0", "\ud83d", "%", "x" * 10_000, new_id()])
def test_a_reference_that_names_nothing_is_not_found(database: str, stranger: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        for find in (service.find_organisation, service.find_app, service.find_key):
            with pytest.raises(GatewayError) as refusal:
                await find(connection, stranger)
            assert refusal.value.status == 404

    in_new_app(database, work)


def test_lists_come_in_pages_that_leave_nothing_out(database: str) -> None:
    async def work(connection: asyncpg.Connection, app: str) -> None:
        made = [(await service.create_key(connection, app=app, name=str(n))).row.id for n in range(7)]
        seen: list[str] = []
        while page := await service.list_keys(connection, app, 3, seen[-1] if seen else None):
            seen += [row.id for row in page]
        assert seen == made
        for limit in (0, -1, 10**6):
            with pytest.raises(InvalidRequest):
                await service.list_keys(connection, app, limit)
        with pytest.raises(InvalidRequest):
            await service.list_keys(connection, app, 3, "nonsense")

    in_new_app(database, work)


def test_two_creators_of_one_name_get_one_organisation(database: str) -> None:
    async def race() -> None:
        connections = [await asyncpg.connect(database) for _ in range(4)]
        name = f"org-{new_id()}"
        results = await asyncio.gather(
            *(service.create_organisation(connection, name) for connection in connections),
            return_exceptions=True,
        )
        assert sum(isinstance(result, Conflict) for result in results) == 3
        for connection in connections:
            await connection.close()

    asyncio.run(race())


def test_an_empty_directory_knows_nobody() -> None:
    assert Directory().find(b"tg-anything") is None
