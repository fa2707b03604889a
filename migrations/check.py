"""Does this code's schema match the database's? Asked by the API and the drainer when they start."""

from pathlib import Path

import psycopg

from migrations import graph
from migrations.errors import AddressMalformed, DatabaseUnreachable, SchemaAhead, SchemaBehind

CONNECT_SECONDS = 5


def connect(database_url: str, *, application: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection in autocommit mode.

    Raises DatabaseUnreachable with a sentence that names the server, never the password, and
    AddressMalformed, whose sentence quotes nothing: what is taken for a host may be of the password.
    """
    try:
        return psycopg.connect(
            database_url, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name=application
        )
    except (psycopg.Error, ValueError) as error:
        if malformed(database_url, error):
            raise AddressMalformed(
                "DATABASE_URL is malformed: it must look like postgresql://USER:PASSWORD@HOST:PORT/DATABASE; "
                "percent-encode special characters of the password."
            ) from None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DatabaseUnreachable(
            f"Postgres at {address(database_url)} does not take the connection ({lines[-1].strip()}): check "
            "DATABASE_URL and that the server runs."
        ) from error


def malformed(url: str, error: Exception | None = None) -> bool:
    """Whether `error` is a complaint about the address itself, or a bare @ or / of a password ends up in the
    host or in the path. Neither the error nor parts of the address can then be shown."""
    if isinstance(error, psycopg.ProgrammingError | ValueError):
        return True
    authority, _, path = url.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in path.partition("?")[0]


def address(database_url: str) -> str:
    """host:port/database of a libpq URL, for messages: no user and no password."""
    if malformed(database_url):
        return "DATABASE_URL (percent-encode special characters of its password)"
    try:
        parts = psycopg.conninfo.conninfo_to_dict(database_url)
    except psycopg.Error:
        return "DATABASE_URL (which is not of the form postgresql://user:password@host:port/database)"
    host, port = parts.get("host", "the local socket"), parts.get("port", 5432)
    return f"{host}:{port}/{parts.get('dbname', '')}"


def database_revisions(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """What the database says of itself; empty when it was never migrated."""
    row = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return []
    return sorted(str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version"))


def compare(connection: psycopg.Connection[tuple[object, ...]], versions: Path = graph.VERSIONS) -> bool:
    """True when the database stands at this code's head, False when it is ahead but serves this code still.

    Raises SchemaBehind, SchemaAhead, SeveralHeads.
    """
    code = graph.head(versions)
    database = database_revisions(connection)
    if database == [code]:
        return True
    if not database:
        raise SchemaBehind(
            f"The database is behind: it was never migrated, and this code needs revision {code}. "
            "Run 'tollgate migrate' first."
        )
    if all(revision in graph.parents(versions) for revision in database):
        raise SchemaBehind(
            f"The database is behind: it stands at revision {', '.join(database)}, and this code needs "
            f"{code}. Run 'tollgate migrate' first."
        )
    served = connection.execute("SELECT 1 FROM schema_serves WHERE code_revision = %s", (code,)).fetchone()
    if served is None:
        raise SchemaAhead(
            f"This code is behind: it knows revisions up to {code}, and the database stands at "
            f"{', '.join(database)}. Install the release of Tollgate that migrated it."
        )
    return False


def check(database_url: str, *, versions: Path = graph.VERSIONS) -> None:
    """Refuses a database whose schema this code does not match, saying which side is behind and what to do.

    Raises SchemaBehind, SchemaAhead, DatabaseUnreachable, AddressMalformed.
    """
    with connect(database_url, application="tollgate-check") as connection:
        compare(connection, versions)
