"""The official OpenAI client on real engines: every call works, and its row holds the engine's own numbers.

Against the light engine, then against real vLLM on the CPU with two replicas.
"""

from __future__ import annotations

import re
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

from tests.databases import fresh_database, make_template
from tests.gateway import App, Gateway, running_gateway
from tests.prove.report import Report
from tests.real_engine import RealEngine, running_light_engine
from tests.vllm_replicas import running_vllm_replicas
from tollgate.servers import Servers, running_servers

AT_ONCE = 20
QUESTION: Any = [{"role": "user", "content": "Write one sentence about the sea."}]
# What an engine has counted since it started: (prompt, completion), by the names of its own metrics.
METRICS = {
    "light": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
}


def run(short: bool, seed: int) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory(prefix="tollgate-clients-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running_servers(folder / "servers") as servers:
            make_template(servers.database_url)
            (folder / "light").mkdir()
            with running_light_engine(folder / "light") as engine:
                _on(report, "light", servers, folder / "light-gateway", [engine])
            (folder / "vllm").mkdir()
            with running_vllm_replicas(folder / "vllm", count=2) as replicas:
                _on(report, "vLLM", servers, folder / "vllm-gateway", replicas)
    return report


def _on(report: Report, title: str, servers: Servers, folder: Path, engines: list[RealEngine]) -> None:
    model = engines[0].engine_model
    with (
        fresh_database(servers.database_url) as database,
        running_gateway(
            servers, database, folder, engines=[engine.url for engine in engines], model=model,
            kind=engines[0].kind, endpoints=("chat/completions", "completions"),
        ) as gateway,
    ):  # fmt: skip
        app = gateway.new_app()
        before = [_counted(engine) for engine in engines]
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=app.key, max_retries=0) as client:
            calls = _calls(report, title, client, model)
        rows = app.usage_rows(calls)
        after = [_counted(engine) for engine in engines]
        _books(report, title, gateway, app, rows, len(engines))
        spent = tuple(sum(a[i] - b[i] for a, b in zip(after, before, strict=True)) for i in (0, 1))
        _against_the_engine(report, title, rows, spent)


def _calls(report: Report, title: str, client: openai.OpenAI, model: str) -> int:
    """Every kind of call; how many rows they must leave."""
    create: Callable[..., Any] = client.chat.completions.create
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 12}
    answer = create(**options)
    report.claim(f"{title}: chat", answer.usage.completion_tokens > 0, answer.usage.total_tokens)
    for asked in (True, False):
        more = {"stream_options": {"include_usage": True}} if asked else {}
        chunks = list(create(**options, stream=True, **more))
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        constant = len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        report.claim(
            f"{title}: streamed chat {'with' if asked else 'without'} include_usage",
            bool(text) and constant and len(usages) == asked,
            f"{len(chunks)} chunks, {len(usages)} of usage",
        )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        many = list(
            pool.map(
                lambda number: create(
                    **options | {"messages": [{"role": "user", "content": f"Say the number {number}."}]}
                ),
                range(AT_ONCE),
            )
        )
    report.claim(f"{title}: {AT_ONCE} at once", all(one.usage.completion_tokens for one in many), len(many))
    models = [one.id for one in client.models.list()]
    report.claim(f"{title}: models", models == [model], models)
    try:
        client.embeddings.create(model=model, input="text")
        said = "no error"
    except openai.BadRequestError as error:
        said = str(error.message)
    report.claim(f"{title}: embeddings are a clear error", "does not serve /v1/embeddings" in said, said)
    return 3 + AT_ONCE


def _books(
    report: Report, title: str, gateway: Gateway, app: App, rows: list[dict[str, Any]], replicas: int
) -> None:
    whole = all(row["outcome"] == "completed" and row["usage_source"] == "engine" for row in rows)
    report.claim(f"{title}: a row for each call, counted by the engine", whole, len(rows))
    priced = all(
        row["charge"]
        == gateway.price.charge(row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"])
        for row in rows
    )
    report.claim(f"{title}: each charge is tokens x price", priced, sum(row["charge"] for row in rows))
    charged = Counter(transfer["call_id"] for transfer in app.transfers())
    report.claim(
        f"{title}: each call has exactly one charge",
        charged == Counter(row["id"] for row in rows),
        sum(charged.values()),
    )
    used = Counter(str(row["replica_id"]) for row in rows)
    report.claim(f"{title}: every replica was used", len(used) == replicas, sorted(used.values()))


def _against_the_engine(
    report: Report, title: str, rows: list[dict[str, Any]], spent: tuple[int, ...]
) -> None:
    prompt = sum(row["prompt_tokens"] for row in rows)
    cached = sum(row["cached_tokens"] for row in rows)
    completion = sum(row["completion_tokens"] for row in rows)
    # The light engine counts only the prompt tokens that it had to read; vLLM counts all.
    report.claim(
        f"{title}: the rows' tokens are the engine's own counters",
        spent in ((prompt, completion), (prompt - cached, completion)),
        f"rows {prompt} ({cached} cached) + {completion}, engine {spent[0]} + {spent[1]}",
    )


def _counted(engine: RealEngine) -> tuple[int, int]:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    def value(name: str) -> int:
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    prompt, completion = METRICS[engine.kind]
    return value(prompt), value(completion)
