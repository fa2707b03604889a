"""tollgate orgs, apps, keys and models, as a person or a script calls them."""

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ledger.ids import new_id
from tests import databases
from tests.fakes.scripted_engine import ScriptedEngine

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(database: str, tmp_path: Path) -> Cli:
    """Runs `tollgate` on the module's database, in a home of its own."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tollgate", *words],
            env=os.environ | {"DATABASE_URL": database, "TOLLGATE_HOME": str(tmp_path)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a refused command says: one line on stderr, nothing on stdout, exit code 1."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tollgate: ")
    assert line.endswith(".")
    return line


def row(database: str, query: str, *values: Any) -> dict[str, Any]:
    (found,) = databases.rows(database, query, *values)
    return found


def test_a_key_is_made_shown_once_listed_by_its_prefix_and_revoked(cli: Cli, database: str) -> None:
    org = f"org-{new_id()}"
    assert cli("orgs", "create", org).returncode == 0
    assert cli("apps", "create", f"{org}/web").returncode == 0
    made = cli("keys", "create", "--app", f"{org}/web", "--name", "laptop")
    assert made.returncode == 0
    (key,) = made.stdout.splitlines()
    stored = row(database, "SELECT * FROM api_keys WHERE prefix = %s", key[:8])
    assert stored["digest"] == sha256(key.encode()).digest()

    listed = cli("keys", "list", "--app", f"{org}/web")
    assert key not in listed.stdout
    line = listed.stdout.splitlines()[1].split()
    assert line[:5] == [key[:8], f"{org}/web", "laptop", "chat", "active"]
    assert cli("keys", "revoke", key[:8]).returncode == 0
    assert cli("keys", "list", "--app", f"{org}/web").stdout.splitlines()[1].split()[4] == "revoked"
    assert key not in one_sentence(
        cli("keys", "revoke", key)
    )  # the whole key names nothing, and is not repeated


def test_an_admin_key_is_made_only_when_asked_for(cli: Cli, database: str) -> None:
    made = cli("keys", "create", "--admin", "--name", f"ops-{new_id()}")
    stored = row(database, "SELECT * FROM api_keys WHERE prefix = %s", made.stdout[:8])
    assert (stored["app_id"], stored["scopes"]) == (None, ["admin"])
    assert "--admin" in one_sentence(cli("keys", "create", "--name", "x"))
    assert "--admin" in one_sentence(cli("keys", "create", "--name", "x", "--admin", "--app", "a/b"))


def test_a_key_may_expire(cli: Cli, database: str) -> None:
    made = cli("keys", "create", "--admin", "--name", "short", "--expires-in-days", "0.5")
    stored = row(
        database,
        "SELECT extract(epoch FROM expires_at - created_at)::float AS lives FROM api_keys WHERE prefix = %s",
        made.stdout[:8],
    )
    assert stored["lives"] == pytest.approx(43_200, abs=60)
    for days in ("0", "-1", "nan", "1e9"):
        one_sentence(cli("keys", "create", "--admin", "--name", "x", "--expires-in-days", days))


def test_an_app_shows_its_limits_and_is_revoked_with_its_keys(cli: Cli) -> None:
    org = f"org-{new_id()}"
    cli("orgs", "create", org)
    cli("apps", "create", f"{org}/web")
    cli("keys", "create", "--app", f"{org}/web", "--name", "laptop")
    shown = cli("apps", "show", f"{org}/web").stdout
    assert "1000000 USD" in shown
    assert "concurrency" in shown
    assert cli("apps", "revoke", f"{org}/web").returncode == 0
    assert "revoked" in cli("apps", "list", "--org", org).stdout
    assert cli("keys", "list", "--app", f"{org}/web").stdout.splitlines()[1].split()[4] == "revoked"
    assert cli("orgs", "revoke", org).returncode == 0
    assert any(line.startswith(org) and "revoked" in line for line in cli("orgs", "list").stdout.splitlines())


def test_a_model_is_added_listed_and_removed(cli: Cli, database: str) -> None:
    name = f"lab/{new_id()}"
    added = cli(
        "models",
        "add",
        name,
        *("--engine-url", "http://127.0.0.1:1", "--engine-url", "http://127.0.0.1:2/v1"),
        *("--engine-model", "tiny", "--kind", "vllm", "--slots", "4", "--default-max-output", "64"),
        *("--context-length", "2048", "--endpoints", "embeddings, chat/completions"),
    )
    assert added.returncode == 0, added.stderr
    (id,) = added.stdout.splitlines()
    warnings = added.stderr.splitlines()
    assert [line.split(" ", 5)[:5] for line in warnings[:2]] == [
        ["Warning:", "Nothing", "answers", "at", f"127.0.0.1:{port}"] for port in (1, 2)
    ]
    assert warnings[2:] == [
        f"Warning: {name} has no price, so it is not served: set one with `tollgate prices set {name} "
        "--prompt … --completion …`."
    ]
    stored = row(database, "SELECT * FROM models WHERE name = %s", name)
    assert (stored["default_max_output"], stored["context_length"]) == (64, 2048)
    assert str(stored["id"]) == id
    assert stored["endpoints"] == ["chat/completions", "embeddings"]
    lines = [line.split() for line in cli("models", "list").stdout.splitlines() if line.startswith(name)]
    assert [line[3:8] for line in lines] == [
        ["r1", "http://127.0.0.1:1", "vllm", "4", "ready"],
        ["r2", "http://127.0.0.1:2/v1", "vllm", "4", "ready"],
    ]
    assert cli("models", "remove", name).returncode == 0
    one_sentence(cli("models", "remove", name))


def test_an_engine_that_serves_another_model_is_a_warning_and_one_that_serves_it_is_none(
    cli: Cli, quick_engine: ScriptedEngine
) -> None:
    name = f"m-{new_id()}"
    price = cli("prices", "set", name, "--prompt", "0", "--completion", "0", "--before-model")
    assert price.returncode == 0, price.stderr
    (warning,) = cli("models", "add", name, "--engine-url", quick_engine.url).stderr.splitlines()
    assert f"does not serve '{name}' but 'scripted'" in warning
    assert cli("models", "remove", name).returncode == 0
    added = cli("models", "add", name, "--engine-url", quick_engine.url, "--engine-model", "scripted")
    assert (added.returncode, added.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("orgs", "create", "a b"),
        ("orgs", "revoke", "nobody"),
        ("apps", "create", "no-slash"),
        ("apps", "create", "nobody/app"),
        ("apps", "show", "nobody/app"),
        ("apps", "list", "--org", "nobody"),
        ("keys", "create", "--app", "nobody/app", "--name", "x"),
        ("keys", "create", "--admin", "--name", ""),
        ("keys", "create", "--admin", "--name", "x", "--scope", "chat"),
        ("keys", "revoke", "tg-none0"),
        ("models", "add", "m", "--engine-url", "127.0.0.1:8001"),
        ("models", "add", "m", "--engine-url", "https://h"),
        ("models", "add", "m", "--engine-url", "http://h", "--kind", "best"),
        ("models", "add", "m", "--engine-url", "http://h", "--slots", "0"),
        ("models", "add", "m", "--engine-url", "http://h", "--endpoints", "chat"),
    ],
)
def test_a_wish_that_cannot_be_met_is_one_sentence(cli: Cli, words: tuple[str, ...]) -> None:
    one_sentence(cli(*words))


def test_a_name_that_is_taken_is_one_sentence(cli: Cli) -> None:
    org = f"org-{new_id()}"
    assert cli("orgs", "create", org).returncode == 0
    assert org in one_sentence(cli("orgs", "create", org))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:MARKER@127.0.0.1:1/db", "127.0.0.1:1/db does not take the connection"),
        ("nonsense", "postgresql://"),
        ("postgresql://u:MARKER@127.0.0.1:x/db", "postgresql://"),
    ],
)
def test_a_database_that_is_not_there_is_one_sentence_without_its_password(
    cli: Cli, url: str, said: str
) -> None:
    line = one_sentence(cli("orgs", "list", DATABASE_URL=url))
    assert said in line
    assert "MARKER" not in line


def test_a_wrong_password_and_an_empty_database_are_one_sentence(
    cli: Cli, database: str, servers: Any
) -> None:
    head, _, tail = database.partition("@")
    wrong = f"{head}WRONG@{tail}"
    assert "WRONG" not in one_sentence(cli("orgs", "list", DATABASE_URL=wrong))
    assert "tollgate migrate" in one_sentence(cli("orgs", "list", DATABASE_URL=servers.database_url))
