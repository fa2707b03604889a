"""What can go wrong between the code and the database's schema. Each says in one sentence what to do."""


class MigrationError(Exception):
    """The database's schema could not be read or changed."""


class DatabaseUnreachable(MigrationError):
    """Postgres at DATABASE_URL did not take the connection."""


class AddressMalformed(MigrationError):
    """DATABASE_URL cannot be read, and no waiting will mend that."""


class SchemaMismatch(MigrationError):
    """Code and database are not of the same release."""


class SchemaBehind(SchemaMismatch):
    """The database lacks migrations that this code needs."""


class SchemaAhead(SchemaMismatch):
    """The database has migrations that this code does not know."""


class SeveralHeads(MigrationError):
    """Two migrations have the same parent, so that nobody knows which schema is the newest."""


class MigrationBlocked(MigrationError):
    """Another session held a table for longer than a migration may keep everyone else waiting."""


class MigrationFailed(MigrationError):
    """Postgres refused a statement of a migration, or went away; the steps before it stay."""


class MigrationBusy(MigrationError):
    """Another starter is migrating and did not end in time."""


class LeftoverIndex(MigrationError):
    """An index is invalid: its concurrent build died half-way."""


class PostgresTooOld(MigrationError):
    """The server lacks what the schema is built on."""
