"""The tables of access: organisations, their apps, the apps' keys, limits and budgets.

Every change to them tells the channel `tollgate` (a trigger does, see the migrations). Budgets are money: see
`ledger/tables.py` for its unit.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

organisations = Table(
    "organisations",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("revoked_at", DateTime(timezone=True)),  # its apps' keys no longer work from then on
)

apps = Table(
    "apps",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("organisation_id", Uuid, ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("revoked_at", DateTime(timezone=True)),  # its keys no longer work from then on
    UniqueConstraint("organisation_id", "name"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("app_id", Uuid, ForeignKey("apps.id"), index=True),  # null: an admin key
    Column("name", Text, nullable=False),
    Column(
        "digest", LargeBinary, nullable=False, unique=True
    ),  # sha256 of the whole key; the key is stored nowhere
    Column("prefix", Text, nullable=False),  # its first 8 characters, for people to tell keys apart
    Column("scopes", ARRAY(Text), nullable=False, server_default=text("'{chat}'")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    CheckConstraint("length(digest) = 32", name="digest"),
    CheckConstraint("length(prefix) <= 8", name="prefix"),
)

limits = Table(
    "limits",
    metadata,
    Column("app_id", Uuid, ForeignKey("apps.id"), primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("window", Text, primary_key=True),  # a reserved word: hand-written SQL has to quote it
    Column("value", BigInteger, nullable=False),
    CheckConstraint("subject IN ('app', 'end_user')", name="subject"),
    CheckConstraint("what IN ('requests', 'tokens', 'concurrency')", name="what"),
    CheckConstraint("\"window\" IN ('minute', 'day', 'none')", name="window"),
    CheckConstraint("(what = 'concurrency') = (\"window\" = 'none')", name="window_of_what"),
    CheckConstraint("value > 0", name="value"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("app_id", Uuid, ForeignKey("apps.id"), primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("amount", Numeric(38, 12), nullable=False),
    Column("currency", Text, nullable=False),
    Column("hard", Boolean, nullable=False, server_default=text("true")),
    CheckConstraint("subject IN ('app', 'end_user')", name="subject"),
    CheckConstraint("period IN ('total', 'day', 'month')", name="period"),
    CheckConstraint("amount >= 0 AND amount <> 'NaN'", name="amount"),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
)
