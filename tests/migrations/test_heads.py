"""One line of migrations, and tables that are what the code says they are."""

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from migrations import graph
from migrations.check import check
from migrations.errors import SeveralHeads
from migrations.run import HERE, heads, upgrade
from migrations.steps import locked
from tests.migrations.conftest import Tree, revision


def test_there_is_one_head_and_it_is_the_one_that_alembic_finds() -> None:
    assert heads() == ScriptDirectory(str(HERE)).get_heads() == [graph.head()]


def test_two_migrations_of_one_parent_fail_the_check_with_a_sentence(tree: Tree) -> None:
    right = tree.start("check-heads", "")
    assert (right.wait(30), right.communicate()[0]) == (0, f"One head: {graph.head()}.\n")
    parent = graph.head()
    tree.add("9001", "pass", parent=parent)
    tree.add("9002", "pass", parent=parent)
    wrong = tree.start("check-heads", "")
    said = wrong.communicate(timeout=30)[1]
    assert wrong.returncode == 1
    assert said == (
        "The migrations have 2 heads (9001, 9002) where there must be one: give one of them the other as its "
        "down_revision.\n"
    )


def test_with_two_heads_nothing_is_migrated_and_nothing_starts(tree: Tree, empty: str) -> None:
    parent = graph.head()
    tree.add("9001", "pass", parent=parent)
    tree.add("9002", "pass", parent=parent)
    with pytest.raises(SeveralHeads):
        upgrade(empty, scripts=tree.scripts)
    with pytest.raises(SeveralHeads):
        check(empty, versions=tree.versions)
    assert revision(empty) is None


def test_the_tables_in_the_code_are_those_that_the_migrations_make(database: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    with locked(database) as connection:
        config.attributes["connection"] = connection
        command.check(config)
