"""`tollgate prices` and `tollgate ledger` as people and scripts use them."""

import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Protocol

import psycopg
import pytest

from tests.databases import fresh_database, url_of
from tests.ledger.books import Books, open_books
from tollgate.cli import main
from tollgate.servers import Servers

TOP_UP = ("ledger", "top-up", "--app", "acme/bot")


@pytest.fixture(scope="module")
def books(servers: Servers, _template: None) -> Iterator[Books]:
    with fresh_database(servers.database_url) as url:
        made = open_books(url)
        made.call("completed")
        made.call("completed", cache="hit")
        made.call("caller_left", completion=1)
        yield made


class Tollgate(Protocol):
    """Runs the command on the module's books; returns what it printed, on stderr when it was to fail."""

    def __call__(self, *words: str, code: int = 0) -> str: ...


@pytest.fixture
def tollgate(books: Books, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tollgate:
    monkeypatch.setenv("DATABASE_URL", books.url)

    def run(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["tollgate", *words])
        ended = 0
        try:
            main()
        except SystemExit as end:
            ended = int(end.code or 0)
        said = capsys.readouterr()
        assert ended == code, said.out + said.err
        return said.err if code else said.out

    return run


def test_the_latest_calls_come_newest_first_with_names_tokens_charge_and_price(tollgate: Tollgate) -> None:
    calls = json.loads(tollgate("ledger", "usage", "--last", "2", "--json"))
    named = [(call["app"], call["model"], call["outcome"]) for call in calls]
    assert named == [("acme/bot", "m", "caller_left"), ("acme/bot", "m", "completed")]
    left, hit = calls
    assert (left["prompt_tokens"], left["cached_tokens"], left["completion_tokens"]) == (7, 2, 1)
    assert left["charge"] == "0.0000105"  # 5 x 0.0000015 + 2 x 0.0000005 + 0.000002
    assert (left["prompt_price"], left["completion_price"]) == ("0.0000015", "0.000002")
    assert (hit["cache"], hit["charge"], hit["currency"]) == ("hit", "0", "USD")
    shown = tollgate("ledger", "usage", "--app", "acme/bot")
    assert len([line for line in shown.splitlines() if "acme/bot" in line]) == 3
    assert "0.0000105" in shown


def test_spend_is_summed_by_app_model_and_day_for_all_apps_or_one(tollgate: Tollgate) -> None:
    for by in ("app", "model", "day"):
        (line,) = json.loads(tollgate("ledger", "spend", "--by", by, "--app", "acme/bot", "--json"))
        assert (line["calls"], line["prompt_tokens"], line["completion_tokens"]) == (3, 21, 11)
        assert line["spend"] == "0.000029"
    assert "0.000029" in tollgate("ledger", "spend")
    assert "no app 'acme/nobody'" in tollgate("ledger", "spend", "--app", "acme/nobody", code=1)


def test_a_top_up_says_what_the_wallet_holds(tollgate: Tollgate) -> None:
    first = json.loads(tollgate(*TOP_UP, "--amount", "10.50", "--json"))
    assert (first["amount"], first["currency"]) == ("10.5", "USD")
    assert Decimal(first["balance"]) == Decimal("10.50") - Decimal("0.000029")
    said = tollgate(*TOP_UP, "--amount", "0.000029", "--currency", "USD")
    assert said == "0.000029 USD booked; the wallet of acme/bot holds 10.5 USD.\n"
    assert "The books are right." in tollgate("ledger", "verify")


@pytest.mark.parametrize(
    ("amount", "currency", "sentence"),
    [("0", "USD", "above 0"), ("-5", "USD", "negative"), ("0.0000000000001", "USD", "more than 12 decimals"),
     ("ten", "USD", "not a decimal amount"), ("1", "dollar", "three capital letters")],
)  # fmt: skip
def test_a_top_up_that_cannot_be_booked_exactly_is_refused_in_a_sentence(
    tollgate: Tollgate, amount: str, currency: str, sentence: str
) -> None:
    said = tollgate(*TOP_UP, f"--amount={amount}", "--currency", currency, code=1)
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_prices_are_set_listed_and_never_replaced(tollgate: Tollgate) -> None:
    words = (
        "prices",
        "set",
        "n",
        "--prompt",
        "0.0000015",
        "--completion",
        "6e-6",
        "--before-model",
        "--from",
    )
    when = "2027-01-01T01:00+01:00"
    made = json.loads(tollgate(*words, when, "--json"))
    assert made["effective_from"] == "2027-01-01T00:00:00+00:00"
    prices = [made[each] for each in ("prompt", "cached_prompt", "completion")]
    assert prices == ["0.0000015", "0.0000015", "0.000006"]
    assert json.loads(tollgate("prices", "list", "n", "--json")) == [made]
    assert "a price is never changed" in tollgate(*words, when, code=1)
    shown = tollgate("prices", "list")
    assert "2027-01-01T00:00:00+00:00" in shown
    assert "0.000006" in shown
    assert "a time with a zone" in tollgate(*words, "2027-01-01", code=1)


def test_a_price_for_a_model_that_is_not_there_is_refused_with_the_names_there_are(
    tollgate: Tollgate, books: Books
) -> None:
    words = ("prices", "set", "smolm2", "--prompt", "1", "--completion", "1")
    assert "none at all yet" in tollgate(*words, code=1)
    with psycopg.connect(books.url) as connection:
        connection.execute(
            "INSERT INTO models (name, default_max_output, endpoints) VALUES ('smollm2', 9, '{embeddings}')"
        )
    said = tollgate(*words, code=1)
    assert said == (
        "tollgate: There is no model of that name (only smollm2): correct it, or say --before-model if the "
        "model comes later.\n"
    )
    assert json.loads(tollgate("prices", "list", "smolm2", "--json")) == []
    assert tollgate("prices", "set", "smollm2", "--prompt", "1", "--completion", "1")


def test_a_database_that_was_never_migrated_is_said_to_be(
    tollgate: Tollgate, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url_of(servers.database_url, "postgres"))
    said = tollgate("ledger", "spend", code=1)
    assert said == "tollgate: The database's schema is not of this release: run `tollgate migrate` first.\n"
