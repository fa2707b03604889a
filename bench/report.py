"""What a bench found, as lines, as a table in Markdown and as a plot in SVG."""

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench import peers

REFERENCE = "vllm-router"
OURS = "tollgate"
Figures = dict[str, Any]

HOW = """\
The gateway's process has one core to itself; two stand-in engines, the load and all other servers share
the other. {turns} turns of each, interleaved, {seconds:.0f} s per load; medians, and in brackets the
median of each turn's ratio to vllm-router. Prompts of {prompt_bytes} bytes, answers of 64 tokens,
streamed 10 ms apart. Tollgate runs with everything on: key, limits of app and end user, budget hold,
cache look-up (every prompt is new), choice of replica, two journal records per call, ledger. Latency of
a stream is that of its first byte.
"""


class Shape(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def stream(self) -> bool: ...


def unit(shape: Shape) -> str:
    return "cpu_us_per_token" if shape.stream else "cpu_us_per_call"


def line(turn: str, name: str, shape: Shape, figures: Figures) -> str:
    """One load on one peer, as it is done."""
    cost = figures["cost"]["gateway"][unit(shape)]
    per = "token" if shape.stream else "call"
    rate = f"{figures['tokens_per_s']} tokens/s" if shape.stream else f"{figures['calls_per_s']} calls/s"
    p50 = figures["latency_ms"]["p50"]
    bad = f", BAD {figures['bad']}" if figures["bad"] else ""
    return f"{turn}  {name:16} {shape.name:12} {cost} µs/{per}, {rate}, p50 {p50} ms{bad}"


def machine() -> str:
    """The machine in words."""
    model = "an unnamed processor"
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            model = row.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB of memory,"
        f" Linux {platform.release()}, Python {platform.python_version()}"
    )


@dataclass(frozen=True)
class Summary:
    figures: dict[tuple[str, str], list[Figures]]
    faults: list[str]
    asked: dict[str, int]
    turns: int
    seconds: float
    prompt_bytes: int = 800
    busy: float = 0.0  # load average before the first turn

    def cost(self, name: str, shape: Shape, server: str = "gateway") -> float | None:
        """Median over the turns, µs of CPU per call or per token."""
        seen = [one["cost"][server][unit(shape)] for one in self.figures.get((name, shape.name), [])
                if server in one["cost"]]  # fmt: skip
        seen = [value for value in seen if value is not None]
        return median(seen) if seen else None

    def ratio(self, name: str, shape: Shape) -> float | None:
        """Median over the turns of this peer's cost to the reference's in the same turn."""
        pairs = zip(
            self.figures.get((name, shape.name), []),
            self.figures.get((REFERENCE, shape.name), []),
            strict=False,
        )
        costs = [
            (one["cost"]["gateway"][unit(shape)], other["cost"]["gateway"][unit(shape)])
            for one, other in pairs
        ]
        ratios = [ours / theirs for ours, theirs in costs if ours and theirs]
        return median(ratios) if ratios else None

    def markdown(self, shapes: Sequence[Shape], names: Sequence[str]) -> str:
        heads = [f"{shape.name}, µs/{'token' if shape.stream else 'call'}" for shape in shapes]
        rows = [["CPU of the gateway", *heads], ["---", *("---:" for _ in shapes)]]
        for name in names:
            cells = []
            for shape in shapes:
                cost, ratio = self.cost(name, shape), self.ratio(name, shape)
                cells.append(
                    f"{_number(cost)}" + (f" ({ratio:.2f} x)" if ratio and name != REFERENCE else "")
                )
            rows.append([peers.find(name).TITLE, *cells])
        beside = sorted({server for one in self.figures.values() for server in one[0]["cost"]} - {"gateway"})
        for server in beside:
            rows.append(
                [f"beside Tollgate: {server}", *(_number(self.cost(OURS, s, server)) for s in shapes)]
            )
        text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        text += "\n\n" + "\n".join(self._latencies(shapes, names))
        books = ", ".join(f"{count} of {name}" for name, count in self.asked.items())
        text += f"\n\nCalls asked: {books}. " + (
            "FAULTS: " + "; ".join(self.faults)
            if self.faults
            else "Every answer was whole, and each call reached an engine once."
            + (" Each of Tollgate's has exactly one usage row and one charge." if OURS in names else "")
        )
        return text

    def _latencies(self, shapes: Sequence[Shape], names: Sequence[str]) -> list[str]:
        rows = [["ms, p50 / p99", *(s.name for s in shapes)], ["---", *("---:" for _ in shapes)]]
        for name in names:
            cells = []
            for shape in shapes:
                kind = "first_byte_ms" if shape.stream else "latency_ms"
                seen = self.figures.get((name, shape.name), [])
                cells.append(" / ".join(_number(median(f[kind][p] for f in seen)) for p in ("p50", "p99")))
            rows.append([f"{peers.find(name).TITLE}", *cells])
        return ["| " + " | ".join(row) + " |" for row in rows]

    def write(self, shapes: Sequence[Shape], names: Sequence[str], folder: Path) -> None:
        """RESULTS.md and the plot beside it."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        (folder / "results.svg").write_text(self.plot(shapes, names))
        (folder / "RESULTS.md").write_text(
            f"# What a call costs\n\nMade by `make bench` on {today}; {machine()}."
            f" {self.busy:.1f} processes wanted a core when it began; other work makes figures larger.\n\n"
            f"{HOW.format(turns=self.turns, seconds=self.seconds, prompt_bytes=self.prompt_bytes)}\n"
            f"{self.markdown(shapes, names)}\n\n![CPU per call and per token](results.svg)\n"
        )

    def plot(self, shapes: Sequence[Shape], names: Sequence[str]) -> str:
        """Horizontal bars, one group per load, each load on a scale of its own."""
        colours = ["#2563eb", "#f97316", "#16a34a", "#9333ea", "#6b7280", "#dc2626"]
        bar, gap, left, width = 18, 26, 220, 420
        items, y = [], 10
        for shape in shapes:
            costs = {name: self.cost(name, shape) or 0.0 for name in names}
            top = max(costs.values()) or 1.0
            items.append(
                _text(10, y + 12, f"{shape.name}, µs of CPU per {'token' if shape.stream else 'call'}", True)
            )
            y += 20
            for colour, (name, cost) in zip(colours, costs.items(), strict=False):
                length = width * cost / top
                items.append(_text(20, y + 13, peers.find(name).TITLE))
                items.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 3}" fill="{colour}"/>'
                )
                items.append(_text(left + length + 6, y + 13, _number(cost)))
                y += bar
            y += gap - bar
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{y + 10}"'
            ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
            + "".join(items)
            + "</svg>\n"
        )


def _text(x: float, y: float, words: str, strong: bool = False) -> str:
    weight = ' font-weight="bold"' if strong else ""
    return f'<text x="{x:.1f}" y="{y}"{weight}>{words}</text>'


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
