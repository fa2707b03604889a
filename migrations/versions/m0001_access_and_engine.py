"""Organisations, apps, keys, limits, budgets; models, versions, replicas; and the word that they changed.

Revision ID: 0001
Revises:
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Which releases of the code (by the newest migration they know) may go on with this schema besides its own:
# each migration replaces the list by its `serves` when it is applied. See docs/database.md.
SERVED = """
CREATE TABLE schema_serves (
    code_revision text NOT NULL,
    CONSTRAINT pk_schema_serves PRIMARY KEY (code_revision)
);
"""

ACCESS = """
CREATE TABLE organisations (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    CONSTRAINT pk_organisations PRIMARY KEY (id),
    CONSTRAINT uq_organisations_name UNIQUE (name)
);

CREATE TABLE apps (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    organisation_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    CONSTRAINT pk_apps PRIMARY KEY (id),
    CONSTRAINT uq_apps_organisation_id_name UNIQUE (organisation_id, name),
    CONSTRAINT fk_apps_organisation_id_organisations
        FOREIGN KEY (organisation_id) REFERENCES organisations (id)
);

CREATE TABLE api_keys (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    app_id uuid,
    name text NOT NULL,
    digest bytea NOT NULL,
    prefix text NOT NULL,
    scopes text[] NOT NULL DEFAULT '{chat}',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT pk_api_keys PRIMARY KEY (id),
    CONSTRAINT uq_api_keys_digest UNIQUE (digest),
    CONSTRAINT fk_api_keys_app_id_apps FOREIGN KEY (app_id) REFERENCES apps (id),
    CONSTRAINT ck_api_keys_digest CHECK (length(digest) = 32),
    CONSTRAINT ck_api_keys_prefix CHECK (length(prefix) <= 8)
);
CREATE INDEX ix_api_keys_app_id ON api_keys (app_id);

CREATE TABLE limits (
    app_id uuid NOT NULL,
    subject text NOT NULL,
    what text NOT NULL,
    "window" text NOT NULL,
    value bigint NOT NULL,
    CONSTRAINT pk_limits PRIMARY KEY (app_id, subject, what, "window"),
    CONSTRAINT fk_limits_app_id_apps FOREIGN KEY (app_id) REFERENCES apps (id),
    CONSTRAINT ck_limits_subject CHECK (subject IN ('app', 'end_user')),
    CONSTRAINT ck_limits_what CHECK (what IN ('requests', 'tokens', 'concurrency')),
    CONSTRAINT ck_limits_window CHECK ("window" IN ('minute', 'day', 'none')),
    CONSTRAINT ck_limits_window_of_what CHECK ((what = 'concurrency') = ("window" = 'none')),
    CONSTRAINT ck_limits_value CHECK (value > 0)
);

CREATE TABLE budgets (
    app_id uuid NOT NULL,
    subject text NOT NULL,
    period text NOT NULL,
    amount numeric(38,12) NOT NULL,
    currency text NOT NULL,
    hard boolean NOT NULL DEFAULT true,
    CONSTRAINT pk_budgets PRIMARY KEY (app_id, subject, period),
    CONSTRAINT fk_budgets_app_id_apps FOREIGN KEY (app_id) REFERENCES apps (id),
    CONSTRAINT ck_budgets_subject CHECK (subject IN ('app', 'end_user')),
    CONSTRAINT ck_budgets_period CHECK (period IN ('total', 'day', 'month')),
    CONSTRAINT ck_budgets_amount CHECK (amount >= 0 AND amount <> 'NaN'),
    CONSTRAINT ck_budgets_currency CHECK (currency ~ '^[A-Z]{3}$')
);
"""

ENGINE = """
CREATE TABLE models (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    default_max_output integer NOT NULL,
    context_length integer,
    endpoints text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_models PRIMARY KEY (id),
    CONSTRAINT uq_models_name UNIQUE (name),
    CONSTRAINT ck_models_default_max_output CHECK (default_max_output > 0),
    CONSTRAINT ck_models_context_length CHECK (context_length > 0),
    CONSTRAINT ck_models_endpoints CHECK (
        endpoints <@ '{chat/completions,completions,embeddings,responses,messages}'::text[]
    )
);

CREATE TABLE versions (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    model_id uuid NOT NULL,
    name text NOT NULL,
    weight integer NOT NULL DEFAULT 100,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_versions PRIMARY KEY (id),
    CONSTRAINT uq_versions_model_id_name UNIQUE (model_id, name),
    CONSTRAINT fk_versions_model_id_models FOREIGN KEY (model_id) REFERENCES models (id),
    CONSTRAINT ck_versions_weight CHECK (weight >= 0)
);

CREATE TABLE replicas (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    version_id uuid NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    kind text NOT NULL,
    engine_model text NOT NULL,
    slots integer NOT NULL,
    state text NOT NULL DEFAULT 'ready',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_replicas PRIMARY KEY (id),
    CONSTRAINT uq_replicas_version_id_name UNIQUE (version_id, name),
    CONSTRAINT fk_replicas_version_id_versions FOREIGN KEY (version_id) REFERENCES versions (id),
    CONSTRAINT ck_replicas_kind CHECK (kind IN ('light', 'vllm', 'openai')),
    CONSTRAINT ck_replicas_slots CHECK (slots > 0),
    CONSTRAINT ck_replicas_state CHECK (state IN ('ready', 'draining', 'off'))
);
"""

# A trigger rather than a habit: a change made by hand in psql reaches the gateway as well.
ANNOUNCE = """
CREATE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tollgate', TG_TABLE_NAME);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION announce_change() IS 'Tells LISTEN tollgate which table of the snapshot changed';
"""
ANNOUNCED = ("organisations", "apps", "api_keys", "limits", "budgets", "models", "versions", "replicas")


def upgrade() -> None:
    op.execute(SERVED)
    op.execute(ACCESS)
    op.execute(ENGINE)
    op.execute(ANNOUNCE)
    for table in ANNOUNCED:
        op.execute(
            f"CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION announce_change()"
        )


def downgrade() -> None:
    raise NotImplementedError("Tollgate's schema only goes forward: restore a backup instead.")
