"""The load tells good answers from bad ones, and the report's figures are medians of turns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import SHAPES
from bench.environments import PINS
from bench.peers import find, names
from bench.processes import tree_usage
from bench.report import Summary
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import Close, Received, ScriptedEngine, Step

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 3


def load(engine: ScriptedEngine, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", f"{engine.url}/chat/completions", "--connections", "2",
         "--warmup", "0.05", "--seconds", "1", "--tokens", str(TOKENS), *words],
        cwd=ROOT, capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def stream(tokens: int, *, done: bool = True) -> list[Step]:
    events = [wire.role(), *([wire.text(" fox")] * tokens), wire.finish(), *([wire.DONE] if done else [])]
    return [*wire.stream_reply(events)]


@pytest.mark.parametrize("words", [(), ("--stream",)], ids=["whole", "stream"])
def test_good_answers_are_counted_and_none_is_broken_off(
    engine: ScriptedEngine, words: tuple[str, ...]
) -> None:
    answer = wire.reply(wire.chat_answer(" fox" * TOKENS, completion=TOKENS))
    engine.always(lambda _: stream(TOKENS) if words else [answer])
    figures = load(engine, *words)
    assert figures["bad"] == {}
    assert figures["asked"] == figures["whole"] == len(engine.requests()) > 0
    assert 0 < figures["calls"] <= figures["whole"]


BAD: dict[str, tuple[tuple[str, ...], list[Step]]] = {
    "wrong token count": (("--stream",), stream(TOKENS - 1)),
    "no [DONE]": (("--stream",), stream(TOKENS, done=False)),
    "status 500": ((), [wire.reply(wire.error_body("no", 500), 500)]),
    "broken body": ((), [wire.reply(b"{")]),
    "connection lost mid-call": (("--stream",), [wire.stream_head() + wire.chunk(wire.role()), Close()]),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_answer_is_told_by_its_fault(engine: ScriptedEngine, fault: str) -> None:
    words, script = BAD[fault]
    engine.always(lambda _: script)
    figures = load(engine, *words)
    assert set(figures["bad"]) == {fault}
    assert figures["calls"] == figures["whole"] == 0


def test_every_prompt_is_new_and_end_users_take_turns(engine: ScriptedEngine) -> None:
    answer = wire.reply(wire.chat_answer(" fox" * TOKENS, completion=TOKENS))
    seen: list[Received] = []

    def choose(request: Received) -> list[Step]:
        seen.append(request)
        return [answer]

    engine.always(choose)
    load(engine, "--users", "5", "--prompt-bytes", "800")
    prompts = [request.json()["messages"][0]["content"] for request in seen]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt) for prompt in prompts} == {812}
    assert {request.json()["user"] for request in seen} == {f"user-{n:04}" for n in range(5)}


def test_cpu_is_counted_for_a_process_with_all_that_descend_from_it() -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    child = f"subprocess.run([sys.executable, '-c', {burn!r}])"
    script = f"import subprocess, sys\n{child}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"done\n"
        cpu, resident = tree_usage(parent.pid)
        parent.communicate(b"\n")
    assert 0.28 <= cpu < 2
    assert resident > 1 << 20


def figures(cost: float) -> dict[str, Any]:
    gateway = {"cpu_us_per_call": cost, "cpu_us_per_token": cost}
    both = {"p50": 1.0, "p99": 2.0}
    return {"cost": {"gateway": gateway}, "latency_ms": both, "first_byte_ms": both}


def test_a_ratio_is_the_median_of_each_turns_ratio() -> None:
    shape = SHAPES[0]
    seen = {
        ("tollgate", shape.name): [figures(10), figures(40), figures(60)],
        ("vllm-router", shape.name): [figures(10), figures(20), figures(120)],
    }
    summary = Summary(seen, [], {"tollgate": 3, "vllm-router": 3}, 3, 1.0)
    assert summary.cost("tollgate", shape) == 40
    assert summary.ratio("tollgate", shape) == 1.0
    table = summary.markdown([shape], ["tollgate", "vllm-router"])
    assert "40.0 (1.00 x)" in table
    assert summary.plot([shape], ["tollgate", "vllm-router"]).startswith("<svg ")


def test_every_peer_is_found_by_name_and_pinned_exactly() -> None:
    assert {"tollgate", "vllm-router", "litellm", "smg", "fastapi-aiohttp", "direct"} <= set(names())
    assert all(find(name).TITLE for name in names())
    for pins in PINS.glob("*.txt"):
        for line in pins.read_text().splitlines():
            assert line.startswith("#") or line.count("==") == 1, f"{pins.name}: {line}"
