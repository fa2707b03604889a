"""The books: prices, usage, attempts and transfers by month, accounts, what is derived, the journal's marks.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PRICES = """
CREATE TABLE prices (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    model text NOT NULL,
    currency text NOT NULL,
    prompt numeric NOT NULL,
    cached_prompt numeric NOT NULL,
    completion numeric NOT NULL,
    effective_from timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_prices PRIMARY KEY (id),
    CONSTRAINT uq_prices_model_effective_from UNIQUE (model, effective_from),
    CONSTRAINT ck_prices_currency CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT ck_prices_prompt CHECK (
        prompt >= 0 AND prompt < 1000000 AND scale(trim_scale(prompt)) <= 12),
    CONSTRAINT ck_prices_cached_prompt CHECK (
        cached_prompt >= 0 AND cached_prompt < 1000000 AND scale(trim_scale(cached_prompt)) <= 12),
    CONSTRAINT ck_prices_completion CHECK (
        completion >= 0 AND completion < 1000000 AND scale(trim_scale(completion)) <= 12)
);
CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON prices
    FOR EACH STATEMENT EXECUTE FUNCTION announce_change();
"""

BY_MONTH = """
CREATE TABLE usage (
    id uuid NOT NULL,
    organisation_id uuid NOT NULL,
    app_id uuid NOT NULL,
    key_id uuid NOT NULL,
    end_user text,
    model text NOT NULL,
    version_id uuid,
    replica_id uuid,
    endpoint text NOT NULL,
    stream boolean NOT NULL,
    outcome text NOT NULL,
    status integer,
    prompt_tokens integer NOT NULL,
    cached_tokens integer NOT NULL,
    completion_tokens integer NOT NULL,
    reasoning_tokens integer NOT NULL,
    usage_source text NOT NULL,
    price_id uuid,
    charge numeric(38,12) NOT NULL,
    currency text NOT NULL,
    hold numeric(38,12) NOT NULL,
    prompt_bound integer NOT NULL,
    cache text NOT NULL,
    flags text[] NOT NULL DEFAULT '{}',
    admitted_at timestamptz NOT NULL,
    first_byte_us bigint,
    duration_us bigint NOT NULL,
    error_code text,
    host text NOT NULL,
    journal text NOT NULL,
    CONSTRAINT pk_usage PRIMARY KEY (id),
    CONSTRAINT ck_usage_outcome CHECK (outcome IN (
        'completed', 'caller_left', 'engine_failed', 'engine_refused', 'shutdown', 'interrupted',
        'timed_out')),
    CONSTRAINT ck_usage_usage_source CHECK (usage_source IN ('engine', 'counted', 'none')),
    CONSTRAINT ck_usage_cache CHECK (cache IN ('off', 'miss', 'hit')),
    CONSTRAINT ck_usage_tokens CHECK (
        prompt_tokens >= 0 AND completion_tokens >= 0 AND reasoning_tokens >= 0
        AND cached_tokens BETWEEN 0 AND prompt_tokens),
    CONSTRAINT ck_usage_charge CHECK (charge >= 0 AND charge <> 'NaN')
) PARTITION BY RANGE (id);

CREATE TABLE attempts (
    call_id uuid NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    replica_id uuid,
    outcome text NOT NULL,
    status integer,
    prompt_tokens integer NOT NULL,
    cached_tokens integer NOT NULL,
    completion_tokens integer NOT NULL,
    started_at timestamptz NOT NULL,
    duration_us bigint NOT NULL,
    error_code text,
    CONSTRAINT pk_attempts PRIMARY KEY (call_id, number),
    CONSTRAINT ck_attempts_kind CHECK (kind IN ('call', 'retry', 'failover', 'warm_up', 'probe', 'shadow'))
) PARTITION BY RANGE (call_id);

CREATE TABLE transfers (
    id uuid NOT NULL,
    debit_account uuid NOT NULL,
    credit_account uuid NOT NULL,
    amount numeric(38,12) NOT NULL,
    currency text NOT NULL,
    kind text NOT NULL,
    call_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_transfers PRIMARY KEY (id),
    CONSTRAINT ck_transfers_amount CHECK (amount > 0 AND amount <> 'NaN'),
    CONSTRAINT ck_transfers_accounts CHECK (debit_account <> credit_account),
    CONSTRAINT ck_transfers_kind CHECK (kind IN ('charge', 'top_up', 'correction', 'write_off')),
    CONSTRAINT ck_transfers_one_per_call CHECK (
        kind NOT IN ('charge', 'write_off') OR (call_id IS NOT NULL AND call_id = id))
) PARTITION BY RANGE (id);
"""

NEVER_CHANGED = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'Rows of % are never changed or deleted; what was wrong is corrected by a new row.',
        TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
COMMENT ON FUNCTION refuse_change() IS 'Refuses UPDATE, DELETE and TRUNCATE';
"""
KEPT = ("prices", "usage", "attempts", "transfers")

# A new month's tables are made beside their parent and then attached, which (unlike CREATE ... PARTITION OF)
# waits for nobody who reads or writes the parent. Row triggers come with the attachment, TRUNCATE's do not.
MONTHS = """
CREATE FUNCTION month_floor(month date) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM date_trunc('month', month::timestamp)) * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid
$$;
COMMENT ON FUNCTION month_floor(date) IS 'The lowest UUIDv7 that can be made in this month (UTC): its first '
    '48 bits are milliseconds since 1970';

CREATE FUNCTION ensure_month(month date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    child text;
    made boolean := false;
BEGIN
    IF month < DATE '2020-01-01' OR month >= DATE '2100-01-01' THEN
        RAISE EXCEPTION 'No partition for %: outside of the years 2020 to 2099.', month
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH parent IN ARRAY ARRAY['usage', 'attempts', 'transfers'] LOOP
        child := parent || to_char(month, '_YYYY_MM');
        CONTINUE WHEN to_regclass(child) IS NOT NULL;
        -- One maker at a time; who waited here finds the table made. Only a new statement's snapshot shows
        -- it: to_regclass() answers from a cache that waiting for an advisory lock does not refresh.
        PERFORM pg_advisory_xact_lock(hashtext('tollgate.ensure_month'));
        CONTINUE WHEN EXISTS (
            SELECT FROM pg_class WHERE relname = child
                AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = parent::regclass));
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child,
            month_floor(month), month_floor((month + INTERVAL '1 month')::date));
        EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I '
            'FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', child);
        made := true;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION ensure_month(date) IS 'Makes the partitions of usage, attempts and transfers for the '
    'month of this date where they are missing; true when it made one';
"""

ACCOUNTS = """
CREATE TABLE accounts (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    kind text NOT NULL,
    app_id uuid,
    currency text NOT NULL,
    CONSTRAINT pk_accounts PRIMARY KEY (id),
    CONSTRAINT uq_accounts_kind_app_id_currency UNIQUE NULLS NOT DISTINCT (kind, app_id, currency),
    CONSTRAINT ck_accounts_kind CHECK (kind IN (
        'wallet', 'receivable', 'revenue', 'promotion', 'cash', 'provider_cost', 'write_off', 'rounding')),
    CONSTRAINT ck_accounts_currency CHECK (currency ~ '^[A-Z]{3}$')
);

CREATE TABLE balances (
    account_id uuid NOT NULL,
    debits numeric(38,12) NOT NULL DEFAULT 0,
    credits numeric(38,12) NOT NULL DEFAULT 0,
    CONSTRAINT pk_balances PRIMARY KEY (account_id),
    CONSTRAINT fk_balances_account_id_accounts FOREIGN KEY (account_id) REFERENCES accounts (id)
) WITH (fillfactor = 50);

CREATE TABLE usage_days (
    day date NOT NULL,
    organisation_id uuid NOT NULL,
    app_id uuid NOT NULL,
    key_id uuid NOT NULL,
    end_user text NOT NULL DEFAULT '',
    model text NOT NULL,
    version_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    currency text NOT NULL,
    calls bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    charge numeric(38,12) NOT NULL,
    CONSTRAINT pk_usage_days PRIMARY KEY (
        day, organisation_id, app_id, key_id, end_user, model, version_id, currency)
) WITH (fillfactor = 80);
"""

JOURNAL = """
CREATE TABLE journal_files (
    host text NOT NULL,
    name text NOT NULL,
    position bigint NOT NULL,
    finished boolean NOT NULL DEFAULT false,
    CONSTRAINT pk_journal_files PRIMARY KEY (host, name)
);

CREATE TABLE quarantine (
    id bigserial NOT NULL,
    host text NOT NULL,
    journal text NOT NULL,
    position bigint NOT NULL,
    record bytea NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_quarantine PRIMARY KEY (id),
    CONSTRAINT uq_quarantine_host_journal_position UNIQUE (host, journal, position)
);
"""


def upgrade() -> None:
    for statements in (PRICES, BY_MONTH, NEVER_CHANGED, MONTHS, ACCOUNTS, JOURNAL):
        op.execute(statements)
    for table in KEPT:
        op.execute(
            f"CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    raise NotImplementedError("Tollgate's schema only goes forward: restore a backup instead.")
