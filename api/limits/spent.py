"""What an app, or an end user of it, has spent by the books: the limits server's starting point."""

from datetime import date
from typing import Protocol

import asyncpg

from ledger.money import from_numeric

ANSWER_SECONDS = 2.0
_SPENT = """
    SELECT coalesce(sum(charge), 0) FROM usage_days
    WHERE app_id = $1 AND ($2::text IS NULL OR end_user = $2) AND currency = $3
      AND ($4::date IS NULL OR day >= $4)
"""


class SpentSource(Protocol):
    """Where the limiter asks."""

    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        """Spent by the app, or by one end user of it, since a day (UTC; None: ever), in 1e-12.

        Raises OSError, or the source's own error, when it cannot be known now.
        """


class LedgerSpent:
    """The ledger's own day rollup. It is asked once per budget and period, and after a loss."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    async def spent_of(self, app_id: str, end_user: str | None, currency: str, since: date | None) -> int:
        """As SpentSource; also raises asyncpg's errors."""
        connection = await asyncpg.connect(self._database_url, timeout=ANSWER_SECONDS)
        try:
            spent = await connection.fetchval(
                _SPENT, app_id, end_user, currency, since, timeout=ANSWER_SECONDS
            )
        finally:
            await connection.close(timeout=ANSWER_SECONDS)
        return from_numeric(spent)
