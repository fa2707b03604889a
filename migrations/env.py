"""What Alembic runs: on the locked connection of `migrations.run`, or by hand on one of its own."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script
from sqlalchemy import Connection, text

import api.access.tables
import engine.tables
import ledger.tables
from migrations.steps import locked

# Made by functions and by this file rather than described by the packages' tables.
NOT_COMPARED = re.compile(r"schema_serves|(usage|attempts|transfers)_\d{4}_\d{2}")
METADATA = [engine.tables.metadata, api.access.tables.metadata, ledger.tables.metadata]


def _replace_served(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    """In the migration's own transaction: which older releases of the code this schema serves from now on."""
    if not isinstance(step.up_revision, Script) or ctx.connection is None:
        return
    ctx.connection.execute(text("DELETE FROM schema_serves"))
    for revision in getattr(step.up_revision.module, "serves", ()):
        ctx.connection.execute(text("INSERT INTO schema_serves VALUES (:revision)"), {"revision": revision})


def _is_compared(name: str | None, kind: str, parents: Any) -> bool:
    return kind != "table" or name is None or NOT_COMPARED.fullmatch(name) is None


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transaction_per_migration=True,
        compare_server_default=True,
        include_name=_is_compared,
        on_version_apply=_replace_served,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _migrate(given)
else:
    with locked(os.environ["DATABASE_URL"]) as own:
        _migrate(own)
