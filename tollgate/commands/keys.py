"""tollgate keys: what callers send. A key is printed once, when it is made."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from api.access import service
from tollgate.database import with_database
from tollgate.errors import TollgateError
from tollgate.tables import moment, print_table, state

app = typer.Typer(help="Keys of apps, and admin keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    owner: Annotated[str | None, typer.Option("--app", metavar="ORG/APP", help="Whose key it is.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="A key for /admin/v1 instead.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option(help="Repeatable; all that are possible if left out.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="Stop working after so many days.")] = None,
) -> None:
    """Create a key and print it, this once."""
    if (owner is None) != admin:
        raise TollgateError("Say whose key it is with --app ORG/APP, or --admin for an admin key.")
    expires = None
    if expires_in_days is not None:
        if not 0 < expires_in_days <= 36_500:
            raise TollgateError("--expires-in-days must lie above 0 and not above 36500.")
        expires = datetime.now(UTC) + timedelta(days=expires_in_days)
    shown = with_database(
        lambda connection: service.create_key(
            connection, app=owner, name=name, scopes=scope or None, expires_at=expires
        )
    )
    print(shown.key)
    print("Keep it now: only its hash is stored, and it is not shown again.", file=sys.stderr)


@app.command("list")
def list_(
    owner: Annotated[str | None, typer.Option("--app", metavar="ORG/APP", help="Only this app's.")] = None,
) -> None:
    """List keys by their first 8 characters, revoked ones too."""
    found = with_database(lambda connection: service.list_all_keys(connection, owner))
    print_table(
        ["prefix", "app", "name", "scopes", "state", "created", "expires", "id"],
        [
            [
                row.prefix,
                row.app or "(admin)",
                row.name,
                ",".join(row.scopes),
                state(row.revoked_at, row.expires_at),
                moment(row.created_at),
                moment(row.expires_at),
                row.id,
            ]
            for row in found
        ],
    )


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID|PREFIX", help="Its id or first 8 characters.")],
) -> None:
    """Stop a key, for good, within a second everywhere."""
    row = with_database(lambda connection: service.revoke_key(connection, key))
    print(f"{row.prefix} ({row.name}) is revoked.")
