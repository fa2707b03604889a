"""The engine's tables: which models exist, in which versions, served by which replicas.

Every change to them tells the channel `tollgate` (a trigger does, see the migrations), so that processes that
hold them in memory read them anew.
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    MetaData,
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

models = Table(
    "models",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("name", Text, nullable=False, unique=True),
    Column("default_max_output", Integer, nullable=False),
    Column("context_length", Integer),
    # Of 'chat/completions', 'completions', 'embeddings', 'responses', 'messages': what its engines answer.
    Column("endpoints", ARRAY(Text), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    CheckConstraint("default_max_output > 0", name="default_max_output"),
    CheckConstraint("context_length > 0", name="context_length"),
    CheckConstraint(
        "endpoints <@ '{chat/completions,completions,embeddings,responses,messages}'::text[]",
        name="endpoints",
    ),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("model_id", Uuid, ForeignKey("models.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Integer, nullable=False, server_default=text("100")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    UniqueConstraint("model_id", "name"),
    CheckConstraint("weight >= 0", name="weight"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("version_id", Uuid, ForeignKey("versions.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("engine_model", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'ready'")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    UniqueConstraint("version_id", "name"),
    CheckConstraint("kind IN ('light', 'vllm', 'openai')", name="kind"),
    CheckConstraint("slots > 0", name="slots"),
    CheckConstraint("state IN ('ready', 'draining', 'off')", name="state"),
)
