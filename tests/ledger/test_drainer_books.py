"""What the drainer writes for a call, in every table."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger.ids import new_id
from ledger.journal.records import CloseRecord, OpenRecord
from ledger.money import from_numeric
from tests.databases import rows
from tests.ledger.calls import (
    KEY,
    ORGANISATION,
    PRICE,
    REPLICA,
    VERSION,
    attempt,
    closed,
    opened,
    write_calls,
)
from tests.ledger.draining import drain, faults, give_price

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ADMITTED = 1_790_000_000_123_457  # 2026-09-21 14:13:20.123457 UTC


@pytest.fixture(scope="module")
def books(database: str) -> Callable[..., list[dict[str, Any]]]:
    """Asks the database."""
    give_price(database)
    return lambda query, *values: rows(database, query, *values)


@pytest.fixture
def booked(database: str, books: object, tmp_path: Path) -> Callable[..., str]:
    """Writes calls into a journal and drains it; the drainer's log."""

    def book(calls: list[OpenRecord], closes: list[CloseRecord]) -> str:
        write_calls(tmp_path, calls, closes)
        return drain(database, tmp_path)

    return book


def test_every_column_of_a_completed_call_says_what_its_records_said(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    call = opened(new_id(ADMITTED // 1000), admitted_us=ADMITTED)
    booked([call], [closed(call, flags=["capped", 'odd "quote" \\'], error_code="e\tf")])
    (row,) = books("SELECT * FROM usage WHERE id = %s", call.id)
    journal = row.pop("journal")
    assert {name: str(value) if name.endswith("id") else value for name, value in row.items()} == {
        "id": call.id,
        "organisation_id": ORGANISATION,
        "app_id": call.app_id,
        "key_id": KEY,
        "end_user": "user-1",
        "model": "smollm2",
        "version_id": VERSION,
        "replica_id": REPLICA,
        "endpoint": "chat/completions",
        "stream": True,
        "outcome": "completed",
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 10,
        "completion_tokens": 64,
        "reasoning_tokens": 4,
        "usage_source": "engine",
        "price_id": PRICE,
        "charge": Decimal("0.000223"),
        "currency": "USD",
        "hold": Decimal("0.003"),
        "prompt_bound": 120,
        "cache": "miss",
        "flags": ["capped", 'odd "quote" \\'],
        "admitted_at": EPOCH + timedelta(microseconds=ADMITTED),
        "first_byte_us": 50_000,
        "duration_us": 900_000,
        "error_code": "e\tf",
        "host": journal.rsplit("-", 3)[0],
    }


def test_a_charge_is_one_transfer_from_the_apps_wallet_to_revenue_under_the_calls_id(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    call = opened(app_id=new_id())
    booked([call], [closed(call)])
    (transfer,) = books(
        "SELECT t.*, d.kind AS debit, d.app_id, c.kind AS credit FROM transfers t"
        " JOIN accounts d ON d.id = debit_account JOIN accounts c ON c.id = credit_account"
        " WHERE call_id = %s",
        call.id,
    )
    assert str(transfer["id"]) == call.id
    assert (transfer["kind"], transfer["debit"], transfer["credit"]) == ("charge", "wallet", "revenue")
    assert str(transfer["app_id"]) == call.app_id
    assert (transfer["amount"], transfer["currency"]) == (Decimal("0.000223"), "USD")
    (balance,) = books(
        "SELECT debits, credits FROM balances WHERE account_id = %s", transfer["debit_account"]
    )
    assert balance == {"debits": Decimal("0.000223"), "credits": 0}


def test_the_day_is_the_utc_date_of_admission_and_sums_the_calls_of_all_groups(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    app = new_id()
    midnight = int(datetime(2026, 9, 22, tzinfo=UTC).timestamp()) * 1_000_000
    for _ in range(2):
        calls = [
            opened(new_id(at // 1000), app_id=app, admitted_us=at)
            for at in (midnight - 1, midnight, midnight + 1)
        ]
        booked(calls, [closed(call) for call in calls])
    found = books(
        "SELECT day, calls, prompt_tokens, charge FROM usage_days WHERE app_id = %s ORDER BY day", app
    )
    assert found == [
        {"day": date(2026, 9, 21), "calls": 2, "prompt_tokens": 200, "charge": Decimal("0.000446")},
        {"day": date(2026, 9, 22), "calls": 4, "prompt_tokens": 400, "charge": Decimal("0.000892")},
    ]


def test_each_attempt_has_a_row_of_its_own_and_the_caller_has_one_charge(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    call = opened()
    other = new_id()
    tries = [
        attempt(call, replica_id=other, outcome="engine_failed", status=0, completion=3, error_code="reset"),
        attempt(call, kind="failover"),
    ]
    booked([call], [closed(call, attempts=tries)])
    found = books("SELECT * FROM attempts WHERE call_id = %s ORDER BY number", call.id)
    assert [(row["number"], row["kind"], row["status"], str(row["replica_id"])) for row in found] == [
        (1, "call", None, other),
        (2, "failover", 200, REPLICA),
    ]
    assert found[0]["error_code"] == "reset"
    assert found[0]["started_at"] == EPOCH + timedelta(microseconds=tries[0].started_us)
    assert found[0]["duration_us"] == 890_000
    assert len(books("SELECT id FROM transfers WHERE call_id = %s", call.id)) == 1


def test_a_call_that_costs_nothing_has_a_row_and_no_transfer(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    call = opened(cache="hit", version_id=None, replica_id=None, price_id=None, end_user=None, hold=0)
    close = closed(call, charge=0, attempts=[], replica_id=None, version_id=None, first_byte_us=None)
    booked([call], [close])
    (row,) = books("SELECT charge, version_id, first_byte_us FROM usage WHERE id = %s", call.id)
    assert row == {"charge": 0, "version_id": None, "first_byte_us": None}
    assert books("SELECT id FROM transfers WHERE call_id = %s", call.id) == []


def test_an_open_without_a_close_is_interrupted_charged_nothing_and_its_hold_is_written_off(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    lost, free, whole = opened(), opened(hold=0), opened()
    booked([lost, free, whole], [closed(whole)])
    found = books(
        "SELECT id::text, outcome, status, charge, hold, usage_source, prompt_tokens, duration_us FROM usage"
        " WHERE id = ANY(%s::uuid[]) AND outcome = 'interrupted' ORDER BY hold",
        [lost.id, free.id, whole.id],
    )
    assert [row["id"] for row in found] == [free.id, lost.id]
    assert found[1] == {
        "id": lost.id,
        "outcome": "interrupted",
        "status": None,
        "charge": 0,
        "hold": Decimal("0.003"),
        "usage_source": "none",
        "prompt_tokens": 0,
        "duration_us": 0,
    }
    (transfer,) = books(
        "SELECT t.kind, amount, d.kind AS debit, c.kind AS credit FROM transfers t"
        " JOIN accounts d ON d.id = debit_account JOIN accounts c ON c.id = credit_account"
        " WHERE call_id = ANY(%s::uuid[])",
        [lost.id, free.id],
    )
    assert transfer == {
        "kind": "write_off",
        "amount": Decimal("0.003"),
        "debit": "write_off",
        "credit": "provider_cost",
    }


def test_nothing_that_a_caller_can_call_himself_makes_his_call_free_or_moves_a_column(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    names = [
        "a\tb",
        "line\nend",
        "\\N",
        "\\",
        "nul\x00",
        "\ud83d",
        "'; DROP TABLE usage; --",
        "\r",
        "é🌍",
        "",
        "\\.",
    ]
    calls = [opened(end_user=name) for name in names]
    log = booked(calls, [closed(call) for call in calls])
    assert "quarantined" not in log
    for call, name in zip(calls, names, strict=True):
        (row,) = books("SELECT end_user, charge FROM usage WHERE id = %s", call.id)
        assert row["end_user"] == name.replace("\x00", "�").replace("\ud83d", "?")
        assert row["charge"] == Decimal("0.000223")


def test_the_smallest_and_the_largest_amounts_are_exact_to_the_last_digit(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    amounts = [1, 10**12 - 1, 2**53 + 1, 2**63 + 1, 10**38 - 1]
    calls = [opened(hold=amount, currency="XTS", price_id=None) for amount in amounts]
    booked(calls, [closed(call, charge=amount) for call, amount in zip(calls, amounts, strict=True)][:4])
    for call, amount in zip(calls, amounts, strict=True):
        (row,) = books("SELECT charge, hold, outcome FROM usage WHERE id = %s", call.id)
        assert from_numeric(row["hold"]) == amount
        assert from_numeric(row["charge"]) == (0 if row["outcome"] == "interrupted" else amount)


def test_a_call_at_the_end_of_a_month_is_replayed_into_the_partition_of_its_id(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    turn = int(datetime(2031, 5, 1, tzinfo=UTC).timestamp()) * 1000
    before, after = opened(new_id(turn - 1)), opened(new_id(turn))
    for _ in range(2):  # the second time from another file: as a copied journal would
        booked([before, after], [closed(before, ended_us=turn * 1000 + 5), closed(after)])
        found = books(
            "SELECT tableoid::regclass::text AS part, id::text FROM usage WHERE id = ANY(%s::uuid[])"
            " ORDER BY id",
            [before.id, after.id],
        )
        assert [(row["part"], row["id"]) for row in found] == [
            ("usage_2031_04", before.id),
            ("usage_2031_05", after.id),
        ]
        assert len(books("SELECT id FROM transfers WHERE id = ANY(%s::uuid[])", [before.id, after.id])) == 2
        assert (
            len(books("SELECT call_id FROM attempts WHERE call_id = ANY(%s::uuid[])", [before.id, after.id]))
            == 2
        )


def test_a_replayed_call_changes_no_total(
    database: str, booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    calls = [opened() for _ in range(20)]
    closes = [closed(call) for call in calls[:15]]
    totals = "SELECT (SELECT sum(calls) FROM usage_days), (SELECT sum(debits) FROM balances) AS debits"
    booked(calls, closes)
    once = books(totals)
    booked(calls, closes)
    assert books(totals) == once


def test_an_interrupted_call_stays_so_when_a_close_turns_up_later(
    booked: Callable[..., str], books: Callable[..., list[dict[str, Any]]]
) -> None:
    for call in [opened(), opened(hold=0)]:
        booked([call], [])
        booked([call], [closed(call)])
        (row,) = books("SELECT outcome, charge FROM usage WHERE id = %s", call.id)
        assert row == {"outcome": "interrupted", "charge": 0}
        assert books("SELECT id FROM transfers WHERE call_id = %s AND kind = 'charge'", call.id) == []


def test_after_all_this_the_books_add_up(database: str, books: Callable[..., list[dict[str, Any]]]) -> None:
    # Calls of these tests that name no price, or cost more than their tokens, are theirs on purpose.
    assert [fault for fault in faults(database) if not fault.startswith(("charge:", "hold:", "price:"))] == []
