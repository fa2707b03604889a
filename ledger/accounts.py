"""Accounts and their balances.

A transfer takes from one account (debit) and gives to another (credit). What an app has in its wallet is what
we owe it: credits less debits. `balances` is derived: `ledger verify` rebuilds it from the transfers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

import asyncpg

from ledger.ids import month_of
from ledger.money import from_numeric, to_numeric
from ledger.partitions import ensure_months


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount` in units of 1e-12 of the currency, above 0. kind: charge | top_up | correction | write_off."""

    id: str
    debit_account: str
    credit_account: str
    amount: int
    currency: str
    kind: str
    call_id: str | None = None


async def ensure_account(connection: asyncpg.Connection, kind: str, app_id: str | None, currency: str) -> str:
    """The id of the account, made if it was missing; `app_id` None: one of the house's own."""
    find = "SELECT id FROM accounts WHERE kind = $1 AND app_id IS NOT DISTINCT FROM $2 AND currency = $3"
    found = await connection.fetchval(find, kind, app_id, currency)
    if found is None:
        await connection.execute(
            "INSERT INTO accounts (kind, app_id, currency) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            kind,
            app_id,
            currency,
        )
        found = await connection.fetchval(find, kind, app_id, currency)
    return str(found)


async def add_to_balances(connection: asyncpg.Connection, totals: Iterable[tuple[str, int, int]]) -> None:
    """Adds (account id, debits, credits) in units; one row per account, in the caller's transaction.

    Rows are taken in the order of their ids, so that two writers cannot wait for each other.
    """
    ordered = sorted(totals)
    await connection.execute(
        "INSERT INTO balances (account_id, debits, credits) "
        "SELECT * FROM unnest($1::uuid[], $2::numeric[], $3::numeric[]) "
        "ON CONFLICT (account_id) DO UPDATE SET debits = balances.debits + excluded.debits, "
        "credits = balances.credits + excluded.credits",
        [account for account, _, _ in ordered],
        [to_numeric(debits) for _, debits, _ in ordered],
        [to_numeric(credits_) for _, _, credits_ in ordered],
    )


async def post(connection: asyncpg.Connection, transfer: Transfer) -> bool:
    """Books one transfer with its two balances, in one transaction; False when it was booked before."""
    async with connection.transaction():
        year, month = month_of(transfer.id)
        await ensure_months(connection, {date(year, month, 1)})
        booked = await connection.fetchval(
            "INSERT INTO transfers (id, debit_account, credit_account, amount, currency, kind, call_id) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING id",
            transfer.id,
            transfer.debit_account,
            transfer.credit_account,
            to_numeric(transfer.amount),
            transfer.currency,
            transfer.kind,
            transfer.call_id,
        )
        if booked is None:
            return False
        await add_to_balances(
            connection,
            [(transfer.debit_account, transfer.amount, 0), (transfer.credit_account, 0, transfer.amount)],
        )
        return True


async def owed(connection: asyncpg.Connection, account: str) -> int:
    """Credits less debits, in units: what is left in a wallet."""
    value = await connection.fetchval("SELECT credits - debits FROM balances WHERE account_id = $1", account)
    return 0 if value is None else from_numeric(value)
