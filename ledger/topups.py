"""Money that comes in: from cash into an app's wallet."""

from dataclasses import dataclass

import asyncpg

from ledger.accounts import Transfer, ensure_account, owed, post
from ledger.errors import BadAmount
from ledger.ids import new_id
from ledger.money import check_currency, parse_amount


@dataclass(frozen=True, slots=True)
class TopUp:
    """`amount` and the wallet's `balance` afterwards, in units of 1e-12 of the currency."""

    transfer_id: str
    amount: int
    balance: int
    currency: str


async def top_up(
    connection: asyncpg.Connection, *, app_id: str, amount: str, currency: str, transfer_id: str | None = None
) -> TopUp:
    """Books `amount` (decimal text) into the app's wallet; with an earlier try's `transfer_id`, only once.

    Raises BadAmount, BadCurrency.
    """
    units = parse_amount(amount)
    if not units:
        raise BadAmount("A top-up of 0 changes nothing: give an amount above 0.")
    check_currency(currency)
    async with connection.transaction():
        cash = await ensure_account(connection, "cash", None, currency)
        wallet = await ensure_account(connection, "wallet", app_id, currency)
        transfer = Transfer(
            id=transfer_id or new_id(),
            debit_account=cash,
            credit_account=wallet,
            amount=units,
            currency=currency,
            kind="top_up",
        )
        await post(connection, transfer)
        return TopUp(transfer.id, units, await owed(connection, wallet), currency)
