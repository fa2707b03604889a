"""A concurrent index build that dies leaves an INVALID index: found here, dropped before the re-run."""

import psycopg

from migrations.errors import LeftoverIndex


def invalid_indexes(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """Qualified, quoted names. Only plain indexes: a partitioned one waits for its parts."""
    rows = connection.execute(
        "SELECT index.indexrelid::regclass::text FROM pg_index AS index "
        "JOIN pg_class AS class ON class.oid = index.indexrelid "
        "JOIN pg_namespace AS space ON space.oid = class.relnamespace "
        "WHERE NOT index.indisvalid AND class.relkind = 'i' AND space.nspname IN ('public', 'billing') "
        "ORDER BY 1"
    )
    return [str(row[0]) for row in rows]


def drop_invalid_indexes(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """Drops what an earlier migration that died left; its re-run builds them anew. Returns their names."""
    found = invalid_indexes(connection)
    for name in found:
        connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
    return found


def require_valid_indexes(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Raises LeftoverIndex."""
    found = invalid_indexes(connection)
    if found:
        raise LeftoverIndex(
            f"These indexes are invalid: {', '.join(found)}. Drop them and run 'tollgate migrate' again."
        )
