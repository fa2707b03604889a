"""The questions that `ledger verify` asks of the books, in SQL and in NUMERIC: another path than the code
that charges (integers, in the API process) and the code that books (groups, in the drainer).

Each query returns one text per fault; no rows, no fault.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """`promise`: what holds when the query finds nothing."""

    name: str
    promise: str
    query: str


CHARGES_RECOMPUTED = Check(
    "charge",
    "Every charge is its tokens times its price, and 0 where nothing is due",
    """
    SELECT id || ': charged ' || trim_scale(charge) || ', due '
           || coalesce(trim_scale(due)::text, 'unknown, for its price is not in the book')
    FROM (
        SELECT usage.id, usage.charge,
               CASE WHEN usage.cache = 'hit' OR usage.outcome NOT IN ('completed', 'caller_left') THEN 0
                    WHEN usage.prompt_tokens = 0 AND usage.completion_tokens = 0 THEN 0
                    ELSE (usage.prompt_tokens - usage.cached_tokens) * prices.prompt
                         + usage.cached_tokens * prices.cached_prompt
                         + usage.completion_tokens * prices.completion
               END AS due
        FROM usage LEFT JOIN prices ON prices.id = usage.price_id
    ) AS recomputed
    WHERE charge IS DISTINCT FROM due
    """,
)

# A process that is cut off from Postgres serves with the prices that it knows for up to two hours.
PRICES_IN_FORCE = Check(
    "price",
    "Every call's price is one of its model and currency that was in force when it was admitted",
    """
    SELECT usage.id || ': price ' || prices.id || ' of ' || prices.model || ' from ' || prices.effective_from
           || ' for a call to ' || usage.model || ' at ' || usage.admitted_at
    FROM usage JOIN prices ON prices.id = usage.price_id
    WHERE prices.model <> usage.model OR prices.currency <> usage.currency
       OR prices.effective_from > usage.admitted_at
       OR EXISTS (
            SELECT FROM prices AS later
            WHERE later.model = prices.model AND later.effective_from > prices.effective_from
              AND greatest(later.effective_from, later.created_at) < usage.admitted_at - INTERVAL '2 hours'
       )
    """,
)

HOLDS_NOT_PASSED = Check(
    "hold",
    "No charge is above the hold of its call",
    """
    SELECT id || ': charged ' || trim_scale(charge) || ', held ' || trim_scale(hold)
    FROM usage WHERE charge > hold
    """,
)

CHARGED_ROWS_BOOKED = Check(
    "unbooked",
    "Every charged call has its transfer",
    """
    SELECT usage.id || ': charged ' || trim_scale(usage.charge) || ', no transfer'
    FROM usage
    WHERE usage.charge > 0 AND NOT EXISTS (
        SELECT FROM transfers WHERE transfers.call_id = usage.id AND transfers.kind = 'charge')
    """,
)

NEVER_TWICE = Check(
    "twice",
    "No call has two charges",
    """
    SELECT call_id || ': ' || count(*) || ' charges'
    FROM transfers WHERE kind = 'charge' GROUP BY call_id HAVING count(*) > 1
    """,
)

TRANSFERS_EXPLAINED = Check(
    "transfer",
    "Every charge transfer has its call, the call's amount and currency, and goes from the app to revenue",
    """
    SELECT transfers.id || ': ' || trim_scale(transfers.amount) || ' ' || transfers.currency
           || coalesce(' from ' || debit.kind || ' to ' || credit.kind, ' of an unknown account')
           || coalesce(', its call charged ' || trim_scale(usage.charge) || ' ' || usage.currency,
                       ', no call')
    FROM transfers
    LEFT JOIN usage ON usage.id = transfers.call_id
    LEFT JOIN accounts AS debit ON debit.id = transfers.debit_account
    LEFT JOIN accounts AS credit ON credit.id = transfers.credit_account
    WHERE transfers.kind = 'charge' AND (
        transfers.amount IS DISTINCT FROM usage.charge OR transfers.currency IS DISTINCT FROM usage.currency
        OR debit.kind IS NULL OR debit.kind NOT IN ('wallet', 'receivable', 'promotion')
        OR debit.app_id IS DISTINCT FROM usage.app_id OR credit.kind IS DISTINCT FROM 'revenue')
    """,
)

ACCOUNTS_KNOWN = Check(
    "account",
    "Every transfer moves between two known accounts of its currency",
    """
    SELECT transfers.id || ': ' || transfers.currency || ' from '
           || coalesce(debit.kind || ' in ' || debit.currency, 'an unknown account') || ' to '
           || coalesce(credit.kind || ' in ' || credit.currency, 'an unknown account')
    FROM transfers
    LEFT JOIN accounts AS debit ON debit.id = transfers.debit_account
    LEFT JOIN accounts AS credit ON credit.id = transfers.credit_account
    WHERE debit.currency IS DISTINCT FROM transfers.currency
       OR credit.currency IS DISTINCT FROM transfers.currency
    """,
)

WRITE_OFFS_BOOKED = Check(
    "write_off",
    "Every interrupted call has its hold written off, once, and nothing else is written off",
    """
    SELECT coalesce(usage.id, booked.call_id) || ': ' || coalesce(usage.outcome, 'no call') || ', held '
           || coalesce(trim_scale(usage.hold), 0) || ', written off '
           || coalesce(trim_scale(booked.amount) || ' from ' || booked.kind, 'nothing')
    FROM (SELECT * FROM usage WHERE outcome = 'interrupted' AND hold > 0) AS interrupted
    FULL JOIN (
        SELECT transfers.call_id, transfers.amount, transfers.currency,
               coalesce(accounts.kind, 'nowhere') AS kind
        FROM transfers LEFT JOIN accounts ON accounts.id = transfers.debit_account
        WHERE transfers.kind = 'write_off'
    ) AS booked ON booked.call_id = interrupted.id
    LEFT JOIN usage ON usage.id = coalesce(interrupted.id, booked.call_id)
    WHERE interrupted.id IS NULL OR booked.amount IS DISTINCT FROM interrupted.hold
       OR booked.currency <> interrupted.currency OR booked.kind <> 'write_off'
       OR EXISTS (
            SELECT FROM transfers AS other
            WHERE other.call_id = interrupted.id AND other.kind = 'write_off'
            OFFSET 1
       )
    """,
)

BALANCES_REBUILT = Check(
    "balance",
    "Every balance is the sum of its account's transfers",
    """
    SELECT coalesce(rebuilt.account, balances.account_id) || ': '
           || coalesce(trim_scale(balances.debits)::text, 'no') || ' debits and '
           || coalesce(trim_scale(balances.credits)::text, 'no') || ' credits, its transfers say '
           || coalesce(trim_scale(rebuilt.debits), 0) || ' and ' || coalesce(trim_scale(rebuilt.credits), 0)
    FROM (
        SELECT account, sum(debit) AS debits, sum(credit) AS credits
        FROM (
            SELECT debit_account AS account, amount AS debit, 0 AS credit FROM transfers
            UNION ALL
            SELECT credit_account, 0, amount FROM transfers
        ) AS sides
        GROUP BY account
    ) AS rebuilt
    FULL JOIN balances ON balances.account_id = rebuilt.account
    WHERE balances.debits IS DISTINCT FROM coalesce(rebuilt.debits, 0)
       OR balances.credits IS DISTINCT FROM coalesce(rebuilt.credits, 0)
    """,
)

DEBITS_ARE_CREDITS = Check(
    "sum",
    "All debits are all credits, in each currency",
    """
    SELECT accounts.currency || ': ' || trim_scale(sum(balances.debits)) || ' debits, '
           || trim_scale(sum(balances.credits)) || ' credits'
    FROM balances JOIN accounts ON accounts.id = balances.account_id
    GROUP BY accounts.currency HAVING sum(balances.debits) <> sum(balances.credits)
    """,
)

ROLLUP_REBUILT = Check(
    "rollup",
    "Every line of the day rollup is the sum of its calls",
    """
    SELECT concat_ws(' ', day, app_id, key_id, nullif(end_user, ''), model, currency) || ': rolled up '
           || coalesce(kept.calls || ' calls for ' || trim_scale(kept.charge), 'nothing') || ', found '
           || coalesce(rebuilt.calls || ' calls for ' || trim_scale(rebuilt.charge), 'nothing')
    FROM (
        SELECT (admitted_at AT TIME ZONE 'UTC')::date AS day, organisation_id, app_id, key_id,
               coalesce(end_user, '') AS end_user, model,
               coalesce(version_id, '00000000-0000-0000-0000-000000000000') AS version_id, currency,
               count(*) AS calls, sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
               sum(completion_tokens) AS completion_tokens, sum(charge) AS charge
        FROM usage GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
    ) AS rebuilt
    FULL JOIN usage_days AS kept
        USING (day, organisation_id, app_id, key_id, end_user, model, version_id, currency)
    WHERE (rebuilt.calls, rebuilt.prompt_tokens, rebuilt.cached_tokens, rebuilt.completion_tokens,
           rebuilt.charge)
          IS DISTINCT FROM
          (kept.calls, kept.prompt_tokens, kept.cached_tokens, kept.completion_tokens, kept.charge)
    """,
)

IDS_OF_THEIR_TIME = Check(
    "month",
    "Every call's id carries the time of its admission, to the hour: it lies in its month",
    """
    SELECT id || ': admitted at ' || admitted_at || ', its id says ' || made
    FROM (
        SELECT id, admitted_at,
               to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) AS made
        FROM usage
    ) AS timed
    WHERE made NOT BETWEEN admitted_at - INTERVAL '1 hour' AND admitted_at + INTERVAL '1 hour'
    """,
)

ATTEMPTS_HAVE_CALLS = Check(
    "attempt",
    "Every attempt made for a caller has its call",
    """
    SELECT DISTINCT attempts.call_id || ': attempts and no call'
    FROM attempts
    WHERE attempts.kind IN ('call', 'retry', 'failover')
      AND NOT EXISTS (SELECT FROM usage WHERE usage.id = attempts.call_id)
    """,
)

NOTHING_IN_QUARANTINE = Check(
    "quarantine",
    "No record waits in quarantine, outside of the books",
    """
    SELECT host || '/' || journal || ' at ' || position || ': ' || reason FROM quarantine
    """,
)

CHECKS = (
    CHARGES_RECOMPUTED,
    PRICES_IN_FORCE,
    HOLDS_NOT_PASSED,
    CHARGED_ROWS_BOOKED,
    NEVER_TWICE,
    TRANSFERS_EXPLAINED,
    ACCOUNTS_KNOWN,
    WRITE_OFFS_BOOKED,
    BALANCES_REBUILT,
    DEBITS_ARE_CREDITS,
    ROLLUP_REBUILT,
    IDS_OF_THEIR_TIME,
    ATTEMPTS_HAVE_CALLS,
    NOTHING_IN_QUARANTINE,
)
