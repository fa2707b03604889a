"""CPU per call and per streamed token of Tollgate and its peers, measured in one run.

    python -m bench [--quick] [--peer NAME ...] [--runs 3] [--seconds 8] [--profile]

The gateway under test has one core to itself; stand-in engines (two replicas), load, databases and drainer
share the other. Peers take turns, `--runs` times over; figures are medians of the turns, ratios medians of
each turn's ratio. Every answer is checked, and after each turn Tollgate's books: one charge per call.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bench import peers, profiling, report
from bench.environments import ROOT
from bench.peers import Stage, Target
from bench.processes import Cores, cores, free_port, running, wait_for_answer

REPLICAS = 2
TOKENS = 64
USERS = 100


@dataclass(frozen=True)
class Shape:
    """One kind of load: how many connections, each asking again as soon as it is answered."""

    name: str
    connections: int
    stream: bool

    def words(self) -> list[str]:
        return ["--connections", str(self.connections), *(["--stream"] if self.stream else [])]


SHAPES = [
    Shape("32 calls", 32, False),
    Shape("64 calls", 64, False),
    Shape("64 streams", 64, True),
    Shape("256 streams", 256, True),
]


@dataclass
class Results:
    """What load.py said, by peer and shape, one per turn; and what was wrong."""

    figures: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def engines(folder: Path, where: Cores) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(REPLICAS):
            port, log = free_port(), folder / f"engine-{number}.log"
            words = [sys.executable, "-m", "bench.mock_engine", "--port", str(port)]
            process = stack.enter_context(running(words, log, core=where.rest))
            wait_for_answer(process, port, "/health", log)
            addresses.append(f"http://127.0.0.1:{port}")
        yield addresses


def served(addresses: list[str]) -> int:
    """Calls and streams that the engines have answered so far."""
    counts = [orjson.loads(urllib.request.urlopen(f"{url}/count", timeout=10).read()) for url in addresses]
    return sum(count["calls"] + count["streams"] for count in counts)


def load(
    target: Target, shape: Shape, where: Cores, *, warmup: float, seconds: float, prompt_bytes: int = 800
) -> dict[str, Any]:
    """What bench.load says of one load on one peer. `prompt_bytes`: of the system prompt in each call."""
    pids = [f"gateway={target.pid}", *(f"{name}={pid}" for name, pid in target.beside.items())]
    words = [
        *("taskset", "-c", str(where.rest), sys.executable, "-m", "bench.load"),
        *(f"{target.url}/v1/chat/completions", "--key", target.key, *shape.words()),
        *("--tokens", str(TOKENS), "--prompt-bytes", str(prompt_bytes), "--users", str(USERS)),
        *("--warmup", str(warmup), "--seconds", str(seconds)),
        *(word for pid in pids for word in ("--pid", pid)),
    ]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, timeout=seconds + warmup + 180, check=True)
    figures: dict[str, Any] = orjson.loads(done.stdout)
    return figures


def take_turn(name: str, turn: int, options: argparse.Namespace, results: Results, stage: Stage) -> None:
    """Starts a peer, puts every shape of load on it, checks answers and books, stops it."""
    before = served(stage.engines)
    with peers.find(name).running(stage) as target:
        asked = 0
        for shape in SHAPES:
            figures = load(
                target,
                shape,
                stage.cores,
                warmup=options.warmup,
                seconds=options.seconds,
                prompt_bytes=options.prompt_bytes,
            )
            results.figures.setdefault((name, shape.name), []).append(figures)
            asked += figures["asked"]
            print(report.line(f"turn {turn}", name, shape, figures), flush=True)
            if figures["bad"] or figures["whole"] != figures["asked"]:
                results.faults.append(f"{name}, {shape.name}: {figures['bad']} of {figures['asked']} answers")
        reached = served(stage.engines) - before
        if reached != asked:
            results.faults.append(f"{name}: {asked} calls were asked, the engines served {reached}")
        results.faults += [f"{name}: {fault}" for fault in target.books(asked)]
        results.asked[name] = results.asked.get(name, 0) + asked


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=peers.names(),
        help="measure these (default: tollgate, vllm-router)",
    )
    parser.add_argument("--runs", type=int, default=3, help="turns of each peer")
    parser.add_argument("--seconds", type=float, default=8, help="measured seconds per load")
    parser.add_argument("--warmup", type=float, default=2)
    parser.add_argument("--prompt-bytes", type=int, default=800, help="size of each prompt (default 800)")
    parser.add_argument("--quick", action="store_true", help="one turn of 2 s per load, nothing written")
    parser.add_argument("--profile", action="store_true", help="say where the API process spends its time")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds, options.warmup = 1, 2.0, 0.5
    where = cores()
    # What this process starts stays off the gateway's core unless it is the gateway.
    os.sched_setaffinity(0, {where.rest})
    results, busy = Results(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with engines(folder, where) as addresses:
            if options.profile:
                print(profiling.profile(Stage(addresses, folder, where), SHAPES, load))
                return 0
            names = options.peer or [report.OURS, report.REFERENCE]
            for turn in range(1, options.runs + 1):
                for name in names:
                    place = folder / f"{name}-{turn}"
                    place.mkdir()
                    take_turn(name, turn, options, results, Stage(addresses, place, where))
    summary = report.Summary(
        results.figures,
        results.faults,
        results.asked,
        options.runs,
        options.seconds,
        options.prompt_bytes,
        busy,
    )
    print(summary.markdown(SHAPES, names))
    complete = {report.OURS, report.REFERENCE} <= set(names) and options.prompt_bytes == 800
    if complete and not options.quick and not results.faults:
        summary.write(SHAPES, names, ROOT / "bench")
    return 1 if results.faults else 0


if __name__ == "__main__":
    sys.exit(main())
