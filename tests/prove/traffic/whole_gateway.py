"""A `tollgate up` for proofs: real vLLM with the tiny checkpoint, or before the scripted engine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.models.checkpoints import checkpoint
from engine.vllm.environment import build, environment
from ledger.journal.segments import SegmentName
from tests import databases
from tests.fakes import vllm_wire as wire
from tests.fakes.received import Received
from tests.fakes.scripted_engine import Script, ScriptedEngine, Wait, tokens_of
from tests.gateway import journal_end
from tests.prove.traffic.caller import Caller
from tests.prove.traffic.remains import held
from tests.tollgate.starting import PORTS, Up
from tests.waiting import until
from tollgate.home import Ready, read_ready
from tollgate.supervisor.leftovers import start_time

READY_SECONDS = 300.0  # two vLLM replicas on two busy cores
STOP_SECONDS = 90.0
EXAMPLES = 5
SAID = 2_000  # characters of what it said last, for a fault
TINY = "tiny-llama"
REPLICAS = 2
TOKEN_SECONDS = 0.01  # of the scripted engine, unless told otherwise


@dataclass
class WholeGateway:
    """words: the options that it is started with, besides its ports. model: what it serves."""

    up: Up
    words: tuple[str, ...]
    model: str

    def start(self) -> Ready:
        self.up.start(*self.words)
        return self.wait_ready()

    def command(self) -> list[str]:
        """The words that start it."""
        ports = [word for option, port in self.up.ports.items() for word in (option, str(port))]
        return [sys.executable, "-m", "tollgate", "up", *ports, *self.words]

    def wait_ready(self, within: float = READY_SECONDS) -> Ready:
        def look() -> Ready | None:
            assert self.up.process is not None
            assert self.up.process.poll() is None, self.up.said()[-SAID:]
            return read_ready(self.up.home)

        return until(look, f"ready: {self.up.said()[-SAID:]}", within)

    def ready(self) -> Ready:
        """ready.json as it is now: pids change when parts are started again."""
        ready = read_ready(self.up.home)
        assert ready is not None, f"ready.json is not there: {self.up.said()[-SAID:]}"
        return ready

    def pid(self, name: str) -> int | None:
        """The pid of a part's present process; None while there is none."""
        ready = read_ready(self.up.home)
        pid = None if ready is None else ready["pids"].get(name)
        return pid if pid is not None and start_time(pid) is not None else None

    def said(self) -> str:
        """What it said in all its runs."""
        try:
            return (self.up.home / "logs" / "up.log").read_text()
        except FileNotFoundError:
            return self.up.said()

    def caller(self, patience: float) -> Caller:
        """Somebody with the key of the fresh app."""
        ready = self.ready()
        address = urlsplit(ready["api"])
        assert address.hostname is not None
        assert address.port is not None
        return Caller(address.hostname, address.port, ready["app_key"], self.model, patience=patience)

    # the books

    def app_id(self) -> str:
        """Of the fresh app whose key is in ready.json."""
        ready = self.ready()
        digest = hashlib.sha256(ready["app_key"].encode()).digest()
        query = "SELECT app_id FROM api_keys WHERE digest = %s"
        return str(databases.rows(ready["database_url"], query, digest)[0]["app_id"])

    def drained(self) -> bool:
        """Whether all that journals hold is in the books, and the files of dead processes are gone."""
        ready = self.ready()
        pids = set(ready["pids"].values())
        known = databases.rows(ready["database_url"], "SELECT name, position FROM journal_files")
        positions = {row["name"]: row["position"] for row in known}
        return all(
            SegmentName.parse(path.name).pid in pids and positions.get(path.name, 0) >= journal_end(path)
            for path in (self.up.home / "journal").glob("*.journal")
        )

    def tollgate(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line beside it."""
        return subprocess.run(
            [sys.executable, "-m", "tollgate", *words],
            env=self.up.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def verify(self) -> tuple[int, dict[str, Any]]:
        """`tollgate ledger verify`: exit code and document."""
        done = self.tollgate("ledger", "verify", "--json")
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, document


def differences(document: dict[str, Any]) -> str:
    """What `ledger verify` has found."""
    return "; ".join(
        f"{check['name']}: {check['faults']}, {check['examples'][:EXAMPLES]}"
        for check in document["checks"]
        if check["faults"]
    )


@contextlib.contextmanager
def a_gateway(
    *words: str, real: bool, slots: int = 16, token_seconds: float = TOKEN_SECONDS
) -> Iterator[WholeGateway]:
    """One that is not started yet, in a fresh home; whatever runs of it at the end is ended.

    real: two replicas of vLLM with the tiny checkpoint; else a scripted engine that takes so long for
    each token. slots: calls that one engine answers at the same time.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if real:
            engine: tuple[str, ...] = ("--engine", "vllm", "--replicas", str(REPLICAS))
            engine += ("--model-file", str(_tiny()), "--model", TINY)
            model = TINY
        else:
            scripted = stack.enter_context(ScriptedEngine())
            scripted.always(functools.partial(_paced_answer, token_seconds))
            engine, model = ("--engine-url", scripted.url), scripted.model
        up = Up(Path(folder) / "home", _ports())
        gateway = WholeGateway(up, (*engine, "--slots", str(slots), *words), model)
        try:
            yield gateway
        finally:
            end(gateway)


def end(gateway: WholeGateway) -> None:
    """Whatever still runs of it."""
    process = gateway.up.process
    if process is not None and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()
    for pid in gateway.up.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _paced_answer(seconds: float, request: Received) -> Script:
    """As many words as asked for, in the time that an engine would take for them."""
    if urlsplit(request.target).path != "/v1/chat/completions":
        return [wire.reply({"detail": "Not Found"}, 404)]  # by which it is found what there is
    ask = request.json()
    count, prompt = ask.get("max_tokens") or 5, tokens_of(ask)
    if not ask.get("stream"):
        answer = wire.chat_answer("hello " * count, prompt=prompt, completion=count, reason="length")
        return [Wait(count * seconds), wire.reply(answer)]
    wanted = bool((ask.get("stream_options") or {}).get("include_usage"))
    events = wire.chat_events(["hello "] * count, prompt=prompt, with_usage=wanted, reason="length")
    steps: list[Any] = []
    for step in wire.stream_reply(events):
        steps += [step, Wait(seconds)]
    return steps


def _tiny() -> Path:
    where = build(environment(), progress=_say)
    return checkpoint("tiny-llama", where=where, progress=_say)


def _say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


def _ports() -> dict[str, int]:
    """Free ports for all options and all engines, side by side.

    Below the range that the kernel gives to outgoing connections: an engine that takes its port only after
    half a minute would otherwise find it in use now and then.
    """
    count = len(PORTS) - 1 + REPLICAS
    for first in random.sample(range(22_000, 32_000, count), 50):
        if not held(range(first, first + count)):
            return {option: first + number for number, option in enumerate(PORTS)}  # the engines come last
    raise AssertionError("no free ports were found")
