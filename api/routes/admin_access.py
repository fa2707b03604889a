"""Organisations, apps and keys under /admin/v1, for keys with the scope admin."""

from collections.abc import Sequence
from typing import TypeVar

from fastapi import APIRouter, Depends

from api.access import service
from api.access.schemas import (
    AppIn,
    AppOut,
    AppsOut,
    BudgetsIn,
    BudgetsOut,
    KeyIn,
    KeyOut,
    KeysOut,
    LimitsIn,
    LimitsOut,
    NewKeyOut,
    OrganisationIn,
    OrganisationOut,
    OrganisationsOut,
)
from api.routes.dependencies import PAGE_DEFAULT, After, Connection, Limit, StrictRoute, admin_access

router = APIRouter(
    prefix="/admin/v1", tags=["Access"], dependencies=[Depends(admin_access)], route_class=StrictRoute
)

Row = TypeVar("Row")


def page(rows: Sequence[Row], limit: int) -> dict[str, object]:
    """One more row was asked for than the page holds: it tells whether there are more."""
    return {"data": rows[:limit], "has_more": len(rows) > limit}


@router.post("/orgs", status_code=201, summary="Create an organisation")
async def create_organisation(body: OrganisationIn, connection: Connection) -> OrganisationOut:
    return OrganisationOut.model_validate(await service.create_organisation(connection, body.name))


@router.get("/orgs", summary="List organisations")
async def list_organisations(
    connection: Connection, limit: Limit = PAGE_DEFAULT, after: After = None
) -> OrganisationsOut:
    rows = await service.list_organisations(connection, limit + 1, after)
    return OrganisationsOut.model_validate(page(rows, limit))


@router.get("/orgs/{organization}", summary="One organisation, by id or name")
async def get_organisation(organization: str, connection: Connection) -> OrganisationOut:
    return OrganisationOut.model_validate(await service.find_organisation(connection, organization))


@router.post("/orgs/{organization}/revoke", summary="Stop every key of every app of it")
async def revoke_organisation(organization: str, connection: Connection) -> OrganisationOut:
    return OrganisationOut.model_validate(await service.revoke_organisation(connection, organization))


@router.post("/apps", status_code=201, summary="Create an app, limits and a budget switched on")
async def create_app(body: AppIn, connection: Connection) -> AppOut:
    return AppOut.model_validate(await service.create_app(connection, body.organization, body.name))


@router.get("/apps", summary="List apps")
async def list_apps(
    connection: Connection,
    organization: str | None = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> AppsOut:
    rows = await service.list_apps(connection, organization, limit + 1, after)
    return AppsOut.model_validate(page(rows, limit))


@router.post("/apps/{app:path}/revoke", summary="Stop every key of it")
async def revoke_app(app: str, connection: Connection) -> AppOut:
    return AppOut.model_validate(await service.revoke_app(connection, app))


@router.get("/apps/{app:path}/limits", summary="The app's limits")
async def get_limits(app: str, connection: Connection) -> LimitsOut:
    return LimitsOut.model_validate({"data": await service.limits_of(connection, app)})


@router.put("/apps/{app:path}/limits", summary="Replace the app's limits")
async def put_limits(app: str, body: LimitsIn, connection: Connection) -> LimitsOut:
    rows = await service.replace_limits(connection, app, [limit.row() for limit in body.limits])
    return LimitsOut.model_validate({"data": rows})


@router.get("/apps/{app:path}/budgets", summary="The app's budgets")
async def get_budgets(app: str, connection: Connection) -> BudgetsOut:
    return BudgetsOut.model_validate({"data": await service.budgets_of(connection, app)})


@router.put("/apps/{app:path}/budgets", summary="Replace the app's budgets")
async def put_budgets(app: str, body: BudgetsIn, connection: Connection) -> BudgetsOut:
    rows = await service.replace_budgets(connection, app, [budget.row() for budget in body.budgets])
    return BudgetsOut.model_validate({"data": rows})


@router.get("/apps/{app:path}", summary="One app, by id or as ORG/APP")
async def get_app(app: str, connection: Connection) -> AppOut:
    return AppOut.model_validate(await service.find_app(connection, app))


@router.post("/keys", status_code=201, summary="Create a key, shown this once")
async def create_key(body: KeyIn, connection: Connection) -> NewKeyOut:
    shown = await service.create_key(
        connection, app=body.app, name=body.name, scopes=body.scopes, expires_at=body.expires_at
    )
    return NewKeyOut(**KeyOut.model_validate(shown.row).model_dump(), key=shown.key)


@router.get("/keys", summary="List keys")
async def list_keys(
    connection: Connection, app: str | None = None, limit: Limit = PAGE_DEFAULT, after: After = None
) -> KeysOut:
    rows = await service.list_keys(connection, app, limit + 1, after)
    return KeysOut.model_validate(page(rows, limit))


@router.get("/keys/{key}", summary="One key, by id or its first 8 characters")
async def get_key(key: str, connection: Connection) -> KeyOut:
    return KeyOut.model_validate(await service.find_key(connection, key))


@router.post("/keys/{key}/revoke", summary="Stop a key, by id or its first 8 characters")
async def revoke_key(key: str, connection: Connection) -> KeyOut:
    return KeyOut.model_validate(await service.revoke_key(connection, key))
