"""tollgate orgs: the organisations that apps belong to."""

from typing import Annotated

import typer

from api.access import service
from tollgate.database import with_database
from tollgate.tables import moment, print_table, state

app = typer.Typer(help="Organisations: the owners of apps.", no_args_is_help=True)

Organisation = Annotated[str, typer.Argument(metavar="ORG", help="Its name or id.")]


@app.command()
def create(name: Annotated[str, typer.Argument(help="Letters, digits, dots, dashes, underscores.")]) -> None:
    """Create an organisation; prints its id."""
    print(with_database(lambda connection: service.create_organisation(connection, name)).id)


@app.command("list")
def list_() -> None:
    """List organisations, revoked ones too."""
    found = with_database(service.list_all_organisations)
    print_table(
        ["name", "state", "created", "id"],
        [[row.name, state(row.revoked_at), moment(row.created_at), row.id] for row in found],
    )


@app.command()
def revoke(organisation: Organisation) -> None:
    """Stop every key of every app of an organisation, for good."""
    row = with_database(lambda connection: service.revoke_organisation(connection, organisation))
    print(f"{row.name} is revoked: none of its apps' keys works any more.")
