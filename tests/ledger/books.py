"""Books by hand: calls booked in SQL as the drainer books them, and ways to falsify them behind its back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from ledger.ids import new_id

# So many calls of one token each, from a time on, a thousand in each millisecond.
CALLS = """
INSERT INTO usage (
    id, organisation_id, app_id, key_id, model, version_id, endpoint, stream, outcome, status, prompt_tokens,
    cached_tokens, completion_tokens, reasoning_tokens, usage_source, price_id, charge, currency, hold,
    prompt_bound, cache, admitted_at, duration_us, host, journal)
SELECT (lpad(to_hex((extract(epoch FROM %(at)s::timestamptz) * 1000)::bigint + number / 1000), 12, '0')
        || '7' || lpad(to_hex(number %% 1000), 3, '0') || '8' || substr(md5(number::text), 1, 15))::uuid,
       %(organisation)s, %(app)s, %(key)s, 'm', NULL, 'chat/completions', false, 'completed', 200, 1, 0, 0, 0,
       'engine', prices.id, prices.prompt, prices.currency, prices.prompt, 1, 'off',
       %(at)s::timestamptz + number / 1000 * INTERVAL '1 ms', 1000, 'host', 'by hand'
FROM generate_series(0, %(calls)s - 1) AS number, prices WHERE prices.id = %(price)s
"""

BOOKED = """
INSERT INTO transfers (id, debit_account, credit_account, amount, currency, kind, call_id)
SELECT usage.id,
       (SELECT id FROM accounts
        WHERE kind = CASE outcome WHEN 'interrupted' THEN 'write_off' ELSE 'wallet' END
          AND app_id IS NOT DISTINCT FROM CASE outcome WHEN 'interrupted' THEN NULL ELSE usage.app_id END),
       (SELECT id FROM accounts
        WHERE kind = CASE outcome WHEN 'interrupted' THEN 'provider_cost' ELSE 'revenue' END),
       CASE outcome WHEN 'interrupted' THEN hold ELSE charge END, currency,
       CASE outcome WHEN 'interrupted' THEN 'write_off' ELSE 'charge' END, id
FROM usage
WHERE (charge > 0 OR (outcome = 'interrupted' AND hold > 0))
  AND NOT EXISTS (SELECT FROM transfers WHERE call_id = usage.id)
"""

DERIVED = """
DELETE FROM usage_days;
INSERT INTO usage_days
SELECT (admitted_at AT TIME ZONE 'UTC')::date, organisation_id, app_id, key_id, coalesce(end_user, ''), model,
       coalesce(version_id, '00000000-0000-0000-0000-000000000000'), currency, count(*), sum(prompt_tokens),
       sum(cached_tokens), sum(completion_tokens), sum(charge)
FROM usage GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;
DELETE FROM balances;
INSERT INTO balances
SELECT account, sum(debit), sum(credit)
FROM (SELECT debit_account AS account, amount AS debit, 0 AS credit FROM transfers
      UNION ALL SELECT credit_account, 0, amount FROM transfers) AS sides
GROUP BY account;
"""


@dataclass
class Books:
    """One app `acme/bot` with a price of 0.0000015 per prompt token and 0.000002 per completion token."""

    url: str
    organisation: str
    app: str
    key: str
    price: str

    def run(self, statements: str, **values: object) -> list[dict[str, object]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statements.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def calls(self, calls: int, at: str) -> None:
        """That many calls of one prompt token, booked."""
        self.run(
            CALLS,
            calls=calls,
            at=at,
            organisation=self.organisation,
            app=self.app,
            key=self.key,
            price=self.price,
        )
        self.run(BOOKED)
        self.run(DERIVED)

    def call(
        self,
        outcome: str = "completed",
        *,
        prompt: int = 7,
        cached: int = 2,
        completion: int = 5,
        cache: str = "off",
    ) -> str:
        """One call of now, charged by the rules and booked; returns its id."""
        id = new_id()
        due = outcome in ("completed", "caller_left") and cache != "hit"
        self.run(
            """
            INSERT INTO usage (
                id, organisation_id, app_id, key_id, model, endpoint, stream, outcome, status, prompt_tokens,
                cached_tokens, completion_tokens, reasoning_tokens, usage_source, price_id, charge, currency,
                hold, prompt_bound, cache, admitted_at, duration_us, host, journal)
            SELECT %(id)s, %(organisation)s, %(app)s, %(key)s, 'm', 'chat/completions', true, %(outcome)s,
                   200, %(prompt)s, %(cached)s, %(completion)s, 0, 'engine', id,
                   CASE WHEN %(due)s THEN (%(prompt)s - %(cached)s) * prices.prompt
                        + %(cached)s * prices.cached_prompt + %(completion)s * prices.completion ELSE 0 END,
                   currency, 1, 100, %(cache)s, now(), 1000, 'host', 'by hand'
            FROM prices WHERE id = %(price)s
            """,
            id=id, organisation=self.organisation, app=self.app, key=self.key, outcome=outcome, prompt=prompt,
            cached=cached, completion=completion, due=due, price=self.price, cache=cache,
        )  # fmt: skip
        self.run(BOOKED)
        self.run(DERIVED)
        return id

    def falsify(self, statements: str, **values: object) -> None:
        """What only an owner of the database could do: with the triggers off."""
        tables = ("usage", "transfers", "attempts", "prices")
        off = "".join(f"ALTER TABLE {table} DISABLE TRIGGER USER;" for table in tables)
        on = "".join(f"ALTER TABLE {table} ENABLE TRIGGER USER;" for table in tables)
        self.run(off)
        self.run(statements, **values)
        self.run(on)


@contextmanager
def copied(books: Books) -> Iterator[Books]:
    """The same books once more, in a database of their own, until the block ends."""
    name = f"books_{uuid4().hex}"
    parts = urlsplit(books.url)
    words = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    server = parts._replace(path="/postgres").geturl()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(words.format(sql.Identifier(name), sql.Identifier(parts.path[1:])))
        try:
            yield replace(books, url=parts._replace(path=f"/{name}").geturl())
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def open_books(url: str) -> Books:
    """The app, its price and its accounts, in an empty database."""
    organisation, app, key, price = (str(uuid4()) for _ in range(4))
    books = Books(url, organisation, app, key, price)
    books.run("INSERT INTO organisations (id, name) VALUES (%(id)s, 'acme')", id=organisation)
    books.run(
        "INSERT INTO apps (id, organisation_id, name) VALUES (%(id)s, %(organisation)s, 'bot')",
        id=app,
        organisation=organisation,
    )
    books.run(
        "INSERT INTO prices (id, model, currency, prompt, cached_prompt, completion, effective_from) "
        "VALUES (%(id)s, 'm', 'USD', 0.0000015, 0.0000005, 0.000002, '2026-01-01T00:00Z')",
        id=price,
    )
    books.run(
        "INSERT INTO accounts (kind, app_id, currency) SELECT kind, NULL::uuid, 'USD' "
        "FROM unnest('{revenue,write_off,provider_cost,cash}'::text[]) AS kind "
        "UNION ALL SELECT 'wallet', %(app)s::uuid, 'USD'",
        app=app,
    )
    return books
