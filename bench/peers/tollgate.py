"""Tollgate itself: one API process, PostgreSQL, Valkeys and the drainer, with all that it does switched on.

Afterwards its books must show each call once: one usage row and one charge per call asked.
"""

import contextlib
from collections.abc import Iterator
from importlib.metadata import version

from bench.peers import Stage, Target
from tests.databases import migrate
from tests.gateway import PLENTY, App, Gateway, running_gateway
from tollgate.servers import running_servers

TITLE = f"Tollgate {version('tollgate')}"
LIMITS = [
    (subject, what, window, PLENTY)
    for subject in ("app", "end_user")
    for what, window in (("requests", "minute"), ("tokens", "minute"), ("concurrency", "none"))
]
SLOTS = 4096  # per replica: more than any run has calls under way
DRAIN_SECONDS = 120.0


@contextlib.contextmanager
def running(stage: Stage) -> Iterator[Target]:
    with running_servers(stage.folder / "servers", durable=True) as servers:
        migrate(servers.database_url)
        with running_gateway(
            servers,
            servers.database_url,
            stage.folder,
            engines=stage.engines,
            model="mock",
            slots=SLOTS,
            api_prefix=("taskset", "-c", str(stage.cores.gateway)),
        ) as gateway:
            app = gateway.new_app(limits=LIMITS)
            assert gateway.drainer is not None
            beside = {
                "Valkey limits": servers.pids["valkey-limits"],
                "Valkey cache": servers.pids["valkey-cache"],
                "drainer": gateway.drainer.pid,
                "Postgres": servers.pids["postgres"],
            }
            yield Target(
                gateway.url,
                gateway.processes[0].pid,
                app.key,
                beside,
                lambda asked: faults_in_books(gateway, app, asked),
            )


def faults_in_books(gateway: Gateway, app: App, asked: int) -> list[str]:
    """What the ledger says differently from `asked` calls that were all answered whole."""
    app.wait_usage(asked, DRAIN_SECONDS)
    (seen,) = gateway.rows(
        "SELECT count(*) AS rows, count(*) FILTER (WHERE outcome = 'completed') AS completed,"
        " sum(charge) AS charge, sum(prompt_tokens) AS prompt, sum(completion_tokens) AS completion"
        " FROM usage WHERE app_id = %s",
        app.id,
    )
    (booked,) = gateway.rows(
        "SELECT count(*) AS rows, count(DISTINCT call_id) AS calls, sum(amount) AS amount FROM transfers"
        " WHERE kind = 'charge'"
    )
    expected = {
        "usage rows": (seen["rows"], asked),
        "completed calls": (seen["completed"], asked),
        "charges": (booked["rows"], asked),
        "calls charged": (booked["calls"], asked),
        "sum of charges": (booked["amount"], seen["charge"]),
        "charge for the tokens": (seen["charge"], gateway.price.charge(seen["prompt"], seen["completion"])),
    }
    return [f"{what}: {is_}, not {should}" for what, (is_, should) in expected.items() if is_ != should]
