"""Empty databases, and copies of the migrations that a test may add to."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from migrations import graph
from migrations.run import HERE
from tollgate.servers import Servers

MIGRATION = '''"""Added by a test."""

import os

from alembic import op

revision = "{revision}"
down_revision = "{parent}"
branch_labels = None
depends_on = None
serves = {serves!r}


def upgrade() -> None:
    {steps}
'''


@dataclass
class Tree:
    """A copy of the package `migrations`, in a folder of its own: the code of another release."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / "migrations"

    @property
    def versions(self) -> Path:
        return self.scripts / "versions"

    def add(
        self, revision: str, *steps: str, parent: str | None = None, serves: tuple[str, ...] = ()
    ) -> None:
        """A migration of these statements of Python, on the head unless a parent is named."""
        text = MIGRATION.format(
            revision=revision,
            parent=parent or graph.head(self.versions),
            serves=serves,
            steps="\n    ".join(steps),
        )
        (self.versions / f"m{revision}_test.py").write_text(text)

    def start(self, command: str, database_url: str, **environment: str) -> "subprocess.Popen[str]":
        """`python -m migrations COMMAND` of this release."""
        return subprocess.Popen(
            [sys.executable, "-m", "migrations", command],
            cwd=self.folder,
            env=os.environ | {"DATABASE_URL": database_url, "PYTHONDONTWRITEBYTECODE": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    shutil.copytree(HERE, tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    return Tree(tmp_path)


@pytest.fixture
def empty(servers: Servers) -> Iterator[str]:
    """The URL of a database that was never migrated."""
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(servers.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        yield urlsplit(servers.database_url)._replace(path=f"/{name}").geturl()
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def ask(database_url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def revision(database_url: str) -> object:
    """What the database says of itself; None when it was never migrated."""
    if ask(database_url, "SELECT to_regclass('alembic_version')") == [(None,)]:
        return None
    ((found,),) = ask(database_url, "SELECT version_num FROM alembic_version")
    return found
