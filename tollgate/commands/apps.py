"""tollgate apps: what keys, limits and budgets belong to."""

from typing import Annotated

import asyncpg
import typer

from api.access import service
from api.access.repository import AppRow
from tollgate.database import with_database
from tollgate.errors import TollgateError
from tollgate.tables import moment, print_table, state

app = typer.Typer(help="Apps: each has keys, limits and budgets of its own.", no_args_is_help=True)

App = Annotated[str, typer.Argument(metavar="ORG/APP", help="Its name, or its id.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="ORG/APP", help="The organisation must exist.")],
) -> None:
    """Create an app, limits and a budget switched on; prints its id."""
    organisation, slash, own = name.partition("/")
    if not slash:
        raise TollgateError("Name the app as ORG/APP; `tollgate orgs list` shows the organisations.")
    print(with_database(lambda connection: service.create_app(connection, organisation, own)).id)


@app.command("list")
def list_(org: Annotated[str | None, typer.Option(help="Only this organisation's.")] = None) -> None:
    """List apps, revoked ones too."""
    found = with_database(lambda connection: service.list_all_apps(connection, org))
    print_table(
        ["app", "state", "created", "id"],
        [[_name(row), state(row.revoked_at), moment(row.created_at), row.id] for row in found],
    )


@app.command()
def show(name: App) -> None:
    """Show an app's limits and budgets."""

    async def look(connection: asyncpg.Connection) -> list[list[str]]:
        limits = await service.limits_of(connection, name)
        budgets = await service.budgets_of(connection, name)
        return [
            *([limit.subject, limit.what, limit.window, str(limit.value)] for limit in limits),
            *(
                [
                    budget.subject,
                    "hard budget" if budget.hard else "soft budget",
                    budget.period,
                    f"{budget.amount.normalize():f} {budget.currency}",
                ]
                for budget in budgets
            ),
        ]

    print_table(["subject", "what", "per", "at most"], with_database(look))


@app.command()
def revoke(name: App) -> None:
    """Stop every key of an app, for good."""
    row = with_database(lambda connection: service.revoke_app(connection, name))
    print(f"{_name(row)} is revoked: none of its keys works any more.")


def _name(row: AppRow) -> str:
    return f"{row.organisation}/{row.name}"
