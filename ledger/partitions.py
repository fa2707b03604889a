"""The month partitions of usage, attempts and transfers. A row's month is read from its UUIDv7, in UTC.

There is no default partition: a row whose month is missing is refused, and its writer makes the month.
"""

from collections.abc import Iterable
from datetime import date

import asyncpg


async def ensure_months(connection: asyncpg.Connection, months: Iterable[date]) -> bool:
    """Makes what is missing for the months of these dates; true when something was.

    Any number of writers may call it at once. It costs a query, so remember the months that are there; what a
    transaction made goes away when it rolls back.
    """
    wanted = sorted({month.replace(day=1) for month in months})
    made = await connection.fetch(
        "SELECT ensure_month(month) AS made FROM unnest($1::date[]) AS month", wanted
    )
    return any(row["made"] for row in made)


async def months_there(connection: asyncpg.Connection) -> list[date]:
    """The first day of each month that has its partition of `usage`."""
    rows = await connection.fetch(
        "SELECT to_date(right(inhrelid::regclass::text, 7), 'YYYY_MM') AS month FROM pg_inherits "
        "WHERE inhparent = 'usage'::regclass ORDER BY 1"
    )
    return [row["month"] for row in rows]
