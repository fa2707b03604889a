"""`tollgate migrate`: brings the database's schema to this release."""

from __future__ import annotations

import typer

from migrations.errors import MigrationError
from migrations.run import upgrade
from tollgate.errors import TollgateError
from tollgate.home import database_url

app = typer.Typer(
    invoke_without_command=True, subcommand_metavar="", help="Bring the database's schema to this release."
)


@app.callback()
def migrate() -> None:
    """Bring the schema of DATABASE_URL (or of the `tollgate up` that runs) to this release."""
    try:
        applied = upgrade(database_url(), say=typer.echo)
    except MigrationError as error:
        raise TollgateError(str(error)) from error
    typer.echo(f"Applied {', '.join(applied)}." if applied else "The schema is at this release already.")
