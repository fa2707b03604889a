"""The SQL for a group of calls: COPY fills two temporary tables, then two statements book them."""

INCOMING_CALLS = """
CREATE TEMPORARY TABLE incoming_calls (
    id uuid, organisation_id uuid, app_id uuid, key_id uuid, end_user text, model text, version_id uuid,
    replica_id uuid, endpoint text, stream boolean, outcome text, status integer, prompt_tokens integer,
    cached_tokens integer, completion_tokens integer, reasoning_tokens integer, usage_source text,
    price_id uuid, charge numeric, currency text, hold numeric, prompt_bound integer, cache text,
    flags text[], admitted_us bigint, first_byte_us bigint, duration_us bigint, error_code text, host text,
    journal text, transfer_kind text, debit_account uuid, credit_account uuid, amount numeric
) ON COMMIT DELETE ROWS
"""

INCOMING_ATTEMPTS = """
CREATE TEMPORARY TABLE incoming_attempts (
    call_id uuid, number integer, kind text, replica_id uuid, outcome text, status integer,
    prompt_tokens integer, cached_tokens integer, completion_tokens integer, started_us bigint,
    duration_us bigint, error_code text
) ON COMMIT DELETE ROWS
"""

# Everything derived is computed from rows that were really inserted: a replayed call adds nothing anywhere.
# Rollup and balances are taken in the order of their keys, so that the drainers of two hosts cannot wait for
# each other. Microseconds below 2^53 are exact as an interval.
BOOK_CALLS = """
WITH fresh AS (
    INSERT INTO usage (
        id, organisation_id, app_id, key_id, end_user, model, version_id, replica_id, endpoint, stream,
        outcome, status, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, usage_source,
        price_id, charge, currency, hold, prompt_bound, cache, flags, admitted_at, first_byte_us, duration_us,
        error_code, host, journal)
    SELECT
        id, organisation_id, app_id, key_id, end_user, model, version_id, replica_id, endpoint, stream,
        outcome, status, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, usage_source,
        price_id, charge, currency, hold, prompt_bound, cache, flags,
        timestamptz 'epoch' + admitted_us * interval '1 microsecond', first_byte_us, duration_us, error_code,
        host, journal
    FROM incoming_calls
    ON CONFLICT DO NOTHING
    RETURNING id, organisation_id, app_id, key_id, end_user, model, version_id, currency, prompt_tokens,
        cached_tokens, completion_tokens, charge, admitted_at
), days AS (
    INSERT INTO usage_days AS known (
        day, organisation_id, app_id, key_id, end_user, model, version_id, currency,
        calls, prompt_tokens, cached_tokens, completion_tokens, charge)
    SELECT
        (admitted_at AT TIME ZONE 'UTC')::date, organisation_id, app_id, key_id, coalesce(end_user, ''),
        model, coalesce(version_id, '00000000-0000-0000-0000-000000000000'), currency,
        count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(charge)
    FROM fresh
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
    ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (day, organisation_id, app_id, key_id, end_user, model, version_id, currency) DO UPDATE SET
        calls = known.calls + excluded.calls,
        prompt_tokens = known.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = known.cached_tokens + excluded.cached_tokens,
        completion_tokens = known.completion_tokens + excluded.completion_tokens,
        charge = known.charge + excluded.charge
), booked AS (
    INSERT INTO transfers (id, debit_account, credit_account, amount, currency, kind, call_id)
    SELECT id, debit_account, credit_account, amount, incoming_calls.currency, transfer_kind, id
    FROM incoming_calls JOIN fresh USING (id)
    WHERE transfer_kind IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING debit_account, credit_account, amount
)
INSERT INTO balances AS known (account_id, debits, credits)
SELECT account, sum(debit), sum(credit)
FROM (
    SELECT debit_account AS account, amount AS debit, 0 AS credit FROM booked
    UNION ALL
    SELECT credit_account, 0, amount FROM booked
) AS sides
GROUP BY account
ORDER BY account
ON CONFLICT (account_id) DO UPDATE SET
    debits = known.debits + excluded.debits, credits = known.credits + excluded.credits
"""

BOOK_ATTEMPTS = """
INSERT INTO attempts (
    call_id, number, kind, replica_id, outcome, status, prompt_tokens, cached_tokens, completion_tokens,
    started_at, duration_us, error_code)
SELECT
    call_id, number, kind, replica_id, outcome, status, prompt_tokens, cached_tokens, completion_tokens,
    timestamptz 'epoch' + started_us * interval '1 microsecond', duration_us, error_code
FROM incoming_attempts
ON CONFLICT DO NOTHING
"""

MAKE_ACCOUNTS = """
INSERT INTO accounts (kind, app_id, currency)
SELECT * FROM unnest(%s::text[], %s::uuid[], %s::text[])
ON CONFLICT DO NOTHING
"""

FIND_ACCOUNTS = """
SELECT wanted.kind, wanted.app, wanted.currency, accounts.id::text
FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (kind, app, currency)
JOIN accounts ON accounts.kind = wanted.kind AND accounts.currency = wanted.currency
    AND accounts.app_id IS NOT DISTINCT FROM wanted.app::uuid
"""

# A position never goes back: a replay after a lost answer to COMMIT writes the same again.
MARK = """
INSERT INTO journal_files AS known (host, name, position, finished)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::boolean[])
ON CONFLICT (host, name) DO UPDATE SET
    position = greatest(known.position, excluded.position), finished = known.finished OR excluded.finished
"""

# A finished file that is there again is read from its start, where every call meets its twin: the drainer
# died before it could delete the file, or its name was used a second time.
POSITIONS = """
SELECT host, name, position FROM journal_files
JOIN unnest(%s::text[], %s::text[]) AS wanted (host, name) USING (host, name)
WHERE NOT finished
"""

QUARANTINE = """
INSERT INTO quarantine (host, journal, position, record, reason)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""

KNOWN_CALLS = "SELECT id::text FROM usage WHERE id = ANY(%s::text[]::uuid[])"
