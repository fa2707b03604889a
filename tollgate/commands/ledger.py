"""`tollgate ledger`: top-ups, what was spent, the latest calls, and the proof of the books."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import asyncpg
import orjson
import typer

from api.access.service import find_app
from ledger import spend as spending
from ledger import topups
from ledger.arrival import arrived
from ledger.money import format_amount
from ledger.spend import Call, Spend
from ledger.verify import Report
from ledger.verify import verify as verify_books
from tollgate.database import with_database
from tollgate.home import own_journal
from tollgate.tables import show, table

ARRIVAL_SECONDS = 2.0  # that the latest calls are waited for

app = typer.Typer(
    no_args_is_help=True, help="The books: top-ups, spend, calls, and whether all of it adds up."
)

AppOption = Annotated[str | None, typer.Option("--app", help="Only this app's: ORG/APP or its id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]


class By(StrEnum):
    APP = "app"
    MODEL = "model"
    DAY = "day"


@app.command("top-up")
def top_up(
    of: Annotated[str, typer.Option("--app", help="ORG/APP, or the app's id.")],
    amount: Annotated[str, typer.Option(help="A decimal amount, such as 10 or 0.50.")],
    currency: Annotated[str, typer.Option(help="ISO 4217 code.")] = "USD",
    as_json: JsonOption = False,
) -> None:
    """Book money that came in into an app's wallet."""

    async def work(connection: asyncpg.Connection) -> topups.TopUp:
        found = await find_app(connection, of)
        return await topups.top_up(connection, app_id=found.id, amount=amount, currency=currency)

    done = with_database(work)
    booked, balance = format_amount(done.amount), format_amount(done.balance)
    if as_json:
        _echo({"transfer": done.transfer_id, "amount": booked, "balance": balance, "currency": done.currency})
    else:
        typer.echo(f"{booked} {done.currency} booked; the wallet of {of} holds {balance} {done.currency}.")


@app.command()
def spend(
    by: Annotated[By, typer.Option(help="One line for each app, model or day.")] = By.APP,
    of: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was used and charged so far. Amounts are exact; days are UTC."""

    async def work(connection: asyncpg.Connection) -> list[Spend]:
        await _await_calls(connection)
        return await spending.spend(connection, by.value, await _app_id(connection, of))

    lines = with_database(work)
    if as_json:
        _echo(
            [{by.value: line.what} | {k: v for k, v in asdict(line).items() if k != "what"} for line in lines]
        )
        return
    found = table(
        by.value.capitalize(), ">Calls", ">Prompt tokens", ">Cached", ">Completion tokens", ">Spend", ""
    )
    for line in lines:
        found.add_row(
            line.what,
            *(
                f"{count:,}"
                for count in (line.calls, line.prompt_tokens, line.cached_tokens, line.completion_tokens)
            ),
            _plain(line.spend),
            line.currency,
        )
    show(found, "Nothing was used yet.")


@app.command()
def usage(
    of: AppOption = None,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="How many calls.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the latest calls, the newest first: who, what, tokens, charge, how it ended."""

    async def work(connection: asyncpg.Connection) -> list[Call]:
        await _await_calls(connection)
        return await spending.latest_calls(connection, last, await _app_id(connection, of))

    calls = with_database(work)
    if as_json:
        _echo([asdict(call) for call in calls])
        return
    found = table(
        "Admitted (UTC)", "App", "Model", "Replica", "Outcome", ">In", ">Out", "Cache", ">Charge", "", ">ms"
    )
    for call in calls:
        found.add_row(
            f"{call.admitted_at:%Y-%m-%d %H:%M:%S}",
            call.app,
            call.model,
            call.replica or "-",
            call.outcome,
            str(call.prompt_tokens),
            str(call.completion_tokens),
            call.cache,
            _plain(call.charge),
            call.currency,
            f"{call.duration_us / 1000:,.0f}",
        )
    show(found, "There is no call in the books yet.")


@app.command()
def verify(as_json: JsonOption = False) -> None:
    """Recompute every charge, balance and sum from the calls; exit code 1 when anything differs."""

    async def work(connection: asyncpg.Connection) -> Report:
        await _await_calls(connection)
        return await verify_books(connection)

    report = with_database(work)
    if as_json:
        _echo(_document(report))
    else:
        _print(report)
    if not report.clean:
        raise typer.Exit(1)


async def _await_calls(connection: asyncpg.Connection) -> None:
    """So that a call that was answered a moment ago is seen; the drainer takes up to half a second."""
    journal = own_journal()
    if journal is not None and not await arrived(connection, journal, within=ARRIVAL_SECONDS):
        typer.echo(
            "tollgate: The latest calls are not all in the books yet; look again in a moment, and into "
            "logs/drainer.log if it stays so.",
            err=True,
        )


async def _app_id(connection: asyncpg.Connection, of: str | None) -> str | None:
    return None if of is None else (await find_app(connection, of)).id


def _document(report: Report) -> dict[str, Any]:
    return {
        "clean": report.clean,
        "counts": asdict(report.counts),
        "checks": [
            {
                "name": finding.check.name,
                "promise": finding.check.promise,
                "faults": finding.faults,
                "examples": finding.examples,
            }
            for finding in report.findings
        ],
    }


def _print(report: Report) -> None:
    counts = report.counts
    others = sum(counts.charged_by_other_outcome.values())
    lines = [
        ("Calls in the books", f"{counts.calls:,}", _by(counts.by_outcome)),
        ("  with exactly one charge", f"{counts.with_one_charge:,}", _amounts(counts.charged)),
        (
            "  with no charge",
            f"{counts.with_none:,}",
            "free, cache hits, and what was not the caller's fault",
        ),
        ("  with two charges or more", f"{counts.with_more:,}", ""),
        ("  charges of other outcomes", f"{others:,}", _by(counts.charged_by_other_outcome)),
        ("Interrupted, written off", f"{counts.interrupted:,}", _amounts(counts.written_off)),
        ("Records in quarantine", f"{counts.quarantined:,}", ""),
        ("Journals not read to their end", f"{counts.journals_unread:,}", "their owners may still write"),
    ]
    for what, count, remark in lines:
        typer.echo(f"{what:<32}{count:>14}  {remark}".rstrip())
    typer.echo("")
    for finding in report.findings:
        typer.echo(
            f"{'ok' if not finding.faults else f'{finding.faults:,} FAULTS':<12} {finding.check.promise}"
        )
        for example in finding.examples:
            typer.echo(f"             {example}")
        if finding.faults > len(finding.examples):
            typer.echo(f"             ... and {finding.faults - len(finding.examples):,} more")
    typer.echo("")
    typer.echo("The books are right." if report.clean else "The books differ.")


def _by(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _amounts(sums: dict[str, Decimal]) -> str:
    return ", ".join(f"{_plain(amount)} {currency}" for currency, amount in sums.items())


def _plain(amount: Decimal) -> str:
    """Without trailing zeros and never as 1E-7."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _echo(document: Any) -> None:
    def exactly(value: Any) -> str:
        if isinstance(value, Decimal):
            return _plain(value)
        raise TypeError(type(value).__name__)

    typer.echo(orjson.dumps(document, default=exactly, option=orjson.OPT_UTC_Z).decode())
