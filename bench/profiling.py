"""Where the API process spends its time under load: samples of its stack, as microseconds per call."""

import collections
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import peers
from bench.environments import environment
from bench.peers import Stage
from bench.report import unit

RATE = 1000  # samples a second
SECONDS = 8.0
WARMUP = 2.0
ROWS = 40


def profile(stage: Stage, shapes: Sequence[Any], load: Callable[..., dict[str, Any]]) -> str:
    """For 64 calls and for the most streams: a table of functions by their own and their inclusive time."""
    place = stage.folder / "profile"
    place.mkdir()
    text = []
    with peers.find("tollgate").running(Stage(stage.engines, place, stage.cores)) as target:
        for shape in (shapes[1], shapes[-1]):
            out = place / f"{shape.name.replace(' ', '-')}.folded"
            sampler = threading.Thread(target=_sample, args=(target.pid, out))
            sampler.start()
            figures = load(target, shape, stage.cores, warmup=WARMUP, seconds=SECONDS)
            sampler.join()
            text.append(_table(shape, figures, out))
    return "\n\n".join(text)


def _sample(pid: int, out: Path) -> None:
    # Only what holds the interpreter's lock: waiting, and the journal's syncing thread, cost nothing here.
    sampler = str(environment("profiler") / "py-spy")
    words = [
        *(sampler, "record", "--pid", str(pid), "--output", str(out), "--format", "raw"),
        *("--rate", str(RATE), "--duration", str(int(SECONDS + WARMUP)), "--gil", "--function"),
    ]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        # To look into another process takes root, or kernel.yama.ptrace_scope=0.
        print(f"bench: py-spy could not sample: {done.stderr.strip()[-300:]}", file=sys.stderr)


def _table(shape: Any, figures: dict[str, Any], out: Path) -> str:
    own: collections.Counter[str] = collections.Counter()
    inclusive: collections.Counter[str] = collections.Counter()
    total = 0
    for row in out.read_text().splitlines() if out.exists() else []:
        stack, _, count = row.rpartition(" ")
        frames = stack.split(";")
        total += int(count)
        own[frames[-1]] += int(count)
        for frame in set(frames):
            inclusive[frame] += int(count)
    cost = figures["cost"]["gateway"][unit(shape)]
    per = "token" if shape.stream else "call"
    rows = [
        f"{shape.name}: {cost} µs/{per} while sampled ({total} samples)",
        f"{'own':>8} {'with callees':>13}  µs/{per}",
    ]
    for frame, samples in own.most_common(ROWS):
        rows.append(f"{cost * samples / total:8.2f} {cost * inclusive[frame] / total:13.2f}  {frame}")
    return "\n".join(rows)
