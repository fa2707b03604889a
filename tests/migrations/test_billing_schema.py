"""The schema `billing`: documented to the last column, and never an aggregate over raw usage."""

import psycopg
import pytest

from tests.migrations.conftest import ask

HELD_IN_MEMORY = {
    "organisations": "name",
    "apps": "name",
    "api_keys": "name",
    "limits": "value",
    "budgets": "amount",
    "models": "name",
    "versions": "weight",
    "replicas": "state",
    "prices": "model",
}
VIEWS = ("billing.spend_by_app", "billing.spend_by_app_day")


def test_every_view_and_every_column_of_billing_says_what_it_is(database: str) -> None:
    uncommented = ask(
        database,
        """
        SELECT class.relname, attname FROM pg_class AS class
        JOIN pg_namespace AS space ON space.oid = class.relnamespace AND space.nspname = 'billing'
        JOIN pg_attribute ON attrelid = class.oid AND attnum > 0
        WHERE col_description(class.oid, attnum) IS NULL OR obj_description(class.oid) IS NULL
        """,
    )
    assert uncommented == []
    found = ask(database, "SELECT 'billing.' || viewname FROM pg_views WHERE schemaname = 'billing'")
    assert {name for (name,) in found} == set(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_of_billing_reads_a_usage_partition(database: str, view: str) -> None:
    plan = "\n".join(str(line) for (line,) in ask(database, f"EXPLAIN SELECT * FROM {view}"))
    assert "usage_days" in plan
    assert "usage_2" not in plan


@pytest.mark.parametrize(("table", "column"), HELD_IN_MEMORY.items())
def test_every_change_to_what_processes_hold_in_memory_is_announced(
    database: str, table: str, column: str
) -> None:
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN tollgate")
        ask(database, f"UPDATE {table} SET {column} = {column} WHERE false")
        (word,) = listener.notifies(timeout=5, stop_after=1)
    assert word.payload == table
