"""The ledger's tables.

Money is NUMERIC(38,12): 1e-12 of the currency is the smallest amount, and Python's int counts that unit.
`usage`, `attempts` and `transfers` are only ever added to (triggers refuse the rest) and are partitioned by
month, the month being read from the UUIDv7 that leads their key (`ledger/partitions.py`). `balances` and
`usage_days` are derived: `tollgate ledger verify` rebuilds them and compares.

There are no foreign keys from the partitioned tables: a check per row would cost more than the row, and would
lock the one revenue account for everyone. `ledger verify` finds what they would have refused.
"""

from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Integer,
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

# What `usage_days.version_id` says of calls that no version took (a primary key cannot hold null).
NO_VERSION = UUID(int=0)

MONEY = Numeric(38, 12)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _price_rule(column: str) -> str:
    # NaN and Infinity are above any number in Postgres, so the upper bound refuses them too.
    return f"{column} >= 0 AND {column} < 1000000 AND scale(trim_scale({column})) <= 12"


# A price is never changed, a later one takes its place: so old charges can be recomputed.
prices = Table(
    "prices",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("model", Text, nullable=False),
    Column("currency", Text, nullable=False),
    # Each per token. Without a fixed scale, which would round a 13th decimal instead of refusing it.
    Column("prompt", Numeric, nullable=False),
    Column("cached_prompt", Numeric, nullable=False),
    Column("completion", Numeric, nullable=False),
    Column("effective_from", DateTime(timezone=True), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    UniqueConstraint("model", "effective_from"),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
    CheckConstraint(_price_rule("prompt"), name="prompt"),
    CheckConstraint(_price_rule("cached_prompt"), name="cached_prompt"),
    CheckConstraint(_price_rule("completion"), name="completion"),
)

usage = Table(
    "usage",
    metadata,
    Column("id", Uuid, primary_key=True),  # the call's UUIDv7
    Column("organisation_id", Uuid, nullable=False),
    Column("app_id", Uuid, nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("end_user", Text),
    Column("model", Text, nullable=False),
    Column("version_id", Uuid),
    Column("replica_id", Uuid),
    Column("endpoint", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("status", Integer),  # what the caller was answered; null where nobody knows
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),  # part of prompt_tokens
    Column("completion_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),  # part of completion_tokens
    Column("usage_source", Text, nullable=False),
    Column("price_id", Uuid),
    Column("charge", MONEY, nullable=False),
    Column("currency", Text, nullable=False),
    Column("hold", MONEY, nullable=False),
    Column("prompt_bound", Integer, nullable=False),
    Column("cache", Text, nullable=False),
    Column("flags", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column(
        "admitted_at", DateTime(timezone=True), nullable=False
    ),  # its UTC date is the row's day in usage_days
    Column("first_byte_us", BigInteger),  # since admission
    Column("duration_us", BigInteger, nullable=False),
    Column("error_code", Text),
    Column("host", Text, nullable=False),
    Column("journal", Text, nullable=False),
    CheckConstraint(
        "outcome IN ('completed', 'caller_left', 'engine_failed', 'engine_refused', 'shutdown', "
        "'interrupted', 'timed_out')",
        name="outcome",
    ),
    CheckConstraint("usage_source IN ('engine', 'counted', 'none')", name="usage_source"),
    CheckConstraint("cache IN ('off', 'miss', 'hit')", name="cache"),
    CheckConstraint(
        "prompt_tokens >= 0 AND completion_tokens >= 0 AND reasoning_tokens >= 0 "
        "AND cached_tokens BETWEEN 0 AND prompt_tokens",
        name="tokens",
    ),
    CheckConstraint("charge >= 0 AND charge <> 'NaN'", name="charge"),
    postgresql_partition_by="RANGE (id)",
)

attempts = Table(
    "attempts",
    metadata,
    Column("call_id", Uuid, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("replica_id", Uuid),
    Column("outcome", Text, nullable=False),
    Column("status", Integer),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("duration_us", BigInteger, nullable=False),
    Column("error_code", Text),
    CheckConstraint("kind IN ('call', 'retry', 'failover', 'warm_up', 'probe', 'shadow')", name="kind"),
    postgresql_partition_by="RANGE (call_id)",
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("kind", Text, nullable=False),
    Column("app_id", Uuid),  # null: the house's own
    Column("currency", Text, nullable=False),
    UniqueConstraint("kind", "app_id", "currency", postgresql_nulls_not_distinct=True),
    CheckConstraint(
        "kind IN ('wallet', 'receivable', 'revenue', 'promotion', 'cash', 'provider_cost', 'write_off', "
        "'rounding')",
        name="kind",
    ),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
)

transfers = Table(
    "transfers",
    metadata,
    # A charge or write-off carries its call's id: the primary key makes a second one impossible.
    Column("id", Uuid, primary_key=True),
    Column("debit_account", Uuid, nullable=False),
    Column("credit_account", Uuid, nullable=False),
    Column("amount", MONEY, nullable=False),
    Column("currency", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("call_id", Uuid),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    CheckConstraint("amount > 0 AND amount <> 'NaN'", name="amount"),
    CheckConstraint("debit_account <> credit_account", name="accounts"),
    CheckConstraint("kind IN ('charge', 'top_up', 'correction', 'write_off')", name="kind"),
    CheckConstraint(
        "kind NOT IN ('charge', 'write_off') OR (call_id IS NOT NULL AND call_id = id)", name="one_per_call"
    ),
    postgresql_partition_by="RANGE (id)",
)

# Derived from transfers.
balances = Table(
    "balances",
    metadata,
    Column("account_id", Uuid, ForeignKey("accounts.id"), primary_key=True),
    Column("debits", MONEY, nullable=False, server_default=text("0")),
    Column("credits", MONEY, nullable=False, server_default=text("0")),
)

# Derived from usage: what every total that people read is summed from.
usage_days = Table(
    "usage_days",
    metadata,
    Column("day", Date, primary_key=True),  # UTC date of admission
    Column("organisation_id", Uuid, primary_key=True),
    Column("app_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("end_user", Text, primary_key=True, server_default=text("''")),
    Column("model", Text, primary_key=True),
    Column(
        "version_id",
        Uuid,
        primary_key=True,
        server_default=text("'00000000-0000-0000-0000-000000000000'"),
    ),
    Column("currency", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("charge", MONEY, nullable=False),
)

# How far the drainer has read each journal file (bytes), in the same transaction as the rows read.
journal_files = Table(
    "journal_files",
    metadata,
    Column("host", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("finished", Boolean, nullable=False, server_default=text("false")),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("host", Text, nullable=False),
    Column("journal", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    UniqueConstraint("host", "journal", "position"),
)
