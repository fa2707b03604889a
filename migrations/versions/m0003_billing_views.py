"""The schema `billing`: what finance reads, by names rather than ids, summed from the day rollup alone.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VIEWS = """
CREATE SCHEMA billing;
COMMENT ON SCHEMA billing IS 'Read-only views for finance. Amounts are exact decimals of the row''s '
    'currency; days are UTC';

CREATE VIEW billing.spend_by_app_day AS
SELECT days.day,
       organisations.name AS organisation,
       apps.name AS app,
       days.organisation_id,
       days.app_id,
       days.currency,
       sum(days.calls)::bigint AS calls,
       sum(days.prompt_tokens)::bigint AS prompt_tokens,
       sum(days.cached_tokens)::bigint AS cached_tokens,
       sum(days.completion_tokens)::bigint AS completion_tokens,
       sum(days.charge) AS spend
FROM usage_days AS days
LEFT JOIN apps ON apps.id = days.app_id
LEFT JOIN organisations ON organisations.id = days.organisation_id
GROUP BY days.day, days.organisation_id, organisations.name, days.app_id, apps.name, days.currency;

CREATE VIEW billing.spend_by_app AS
SELECT organisations.name AS organisation,
       apps.name AS app,
       days.organisation_id,
       days.app_id,
       days.currency,
       min(days.day) AS first_day,
       max(days.day) AS last_day,
       sum(days.calls)::bigint AS calls,
       sum(days.prompt_tokens)::bigint AS prompt_tokens,
       sum(days.cached_tokens)::bigint AS cached_tokens,
       sum(days.completion_tokens)::bigint AS completion_tokens,
       sum(days.charge) AS spend
FROM usage_days AS days
LEFT JOIN apps ON apps.id = days.app_id
LEFT JOIN organisations ON organisations.id = days.organisation_id
GROUP BY days.organisation_id, organisations.name, days.app_id, apps.name, days.currency;
"""

VIEW_COMMENTS = {
    "spend_by_app_day": "What each app used and was charged on each day, one row per currency",
    "spend_by_app": "What each app has used and was charged so far, one row per currency",
}
COLUMN_COMMENTS = {
    "day": "Date of admission, UTC",
    "first_day": "First day with a call, UTC",
    "last_day": "Last day with a call, UTC",
    "organisation": "Name of the organisation; null when it is no longer known",
    "app": "Name of the app; null when it is no longer known",
    "organisation_id": "Id of the organisation",
    "app_id": "Id of the app",
    "currency": "ISO 4217 code of the amounts",
    "calls": "Calls with a usage row, of any outcome, cache hits included",
    "prompt_tokens": "Tokens read, those found in the engine's prefix cache included",
    "cached_tokens": "Part of prompt_tokens that the engine had in its prefix cache",
    "completion_tokens": "Tokens written, reasoning included",
    "spend": "Sum of the charges, exact",
}
COLUMNS = {
    "spend_by_app_day": (
        "day organisation app organisation_id app_id currency calls prompt_tokens cached_tokens "
        "completion_tokens spend"
    ),
    "spend_by_app": (
        "organisation app organisation_id app_id currency first_day last_day calls prompt_tokens "
        "cached_tokens completion_tokens spend"
    ),
}


def _quoted(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"


def upgrade() -> None:
    op.execute(VIEWS)
    for view, words in VIEW_COMMENTS.items():
        op.execute(f"COMMENT ON VIEW billing.{view} IS {_quoted(words)}")
        for column in COLUMNS[view].split():
            op.execute(f"COMMENT ON COLUMN billing.{view}.{column} IS {_quoted(COLUMN_COMMENTS[column])}")


def downgrade() -> None:
    raise NotImplementedError("Tollgate's schema only goes forward: restore a backup instead.")
