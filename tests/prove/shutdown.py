"""Ends under open streams: SIGTERM to an API process, Ctrl-C of `up`, kill -9 of the supervisor.

The long form runs two replicas of real vLLM, the short one the scripted engine with a gap before each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from tests.prove.report import Report
from tests.prove.traffic import books
from tests.prove.traffic.caller import Ask, Caller, Told
from tests.prove.traffic.remains import Family, family, held, listens
from tests.prove.traffic.terminal import CTRL_C, Terminal
from tests.prove.traffic.whole_gateway import REPLICAS, STOP_SECONDS, WholeGateway, a_gateway, differences
from tests.waiting import until
from tollgate.supervisor.leftovers import start_time

STREAMS = 100
FEWER_STREAMS = 20
GRACE_SECONDS = 4.0
# What an API process may take beyond its grace, which is what `up` gives it before it kills.
MARGIN_SECONDS = 5.0
TOKENS = 500  # of one stream: far more than come before its end
TOKEN_SECONDS = 0.5  # of the scripted engine
BEGIN_SECONDS = 60.0  # until all streams have begun
PATIENCE_SECONDS = 90.0
ORPHAN_SECONDS = 30.0  # until nothing of a killed supervisor runs: vLLM ends slowly on busy cores
DRAIN_SECONDS = 30.0
EXAMPLES = 5


def run(*, short: bool, seed: int) -> Report:
    report = Report()
    rng = random.Random(seed)
    words = ("--grace", f"{GRACE_SECONDS:g}")
    with (
        a_gateway(*words, real=not short, slots=STREAMS // 2, token_seconds=TOKEN_SECONDS) as gateway,
        contextlib.closing(Terminal(gateway.up.output)) as terminal,
    ):
        proof = _Proof(gateway, terminal, report, rng)
        proof.start("started")
        proof.sigterm()
        proof.ctrl_c()
        proof.start("the next start finds the data")
        proof.tell_ended_streams("Ctrl-C")
        proof.kill_supervisor_and_start()
        proof.tell_ended_streams("the killed supervisor")
        proof.kill_supervisor_and_wait()
    return report


@dataclass(slots=True)
class _Proof:
    gateway: WholeGateway
    terminal: Terminal
    report: Report
    rng: random.Random
    number: int = 0
    told: Sequence[Told] = ()

    def start(self, what: str) -> None:
        gateway = self.gateway
        gateway.up.process = None
        began = time.monotonic()
        gateway.up.home.parent.mkdir(parents=True, exist_ok=True)
        # What a killed supervisor left must not pass for the new one's.
        (gateway.up.home / "ready.json").unlink(missing_ok=True)
        gateway.up.process = self.terminal.run(gateway.command(), gateway.up.environment())
        gateway.wait_ready()
        self.report.figure(f"{what}: ready after", f"{time.monotonic() - began:.1f} s")

    def sigterm(self) -> None:
        gateway, report = self.gateway, self.report
        pid = gateway.pid("api-1")
        assert pid is not None
        ended: list[float] = []

        def act() -> None:
            os.kill(pid, signal.SIGTERM)

        async def meanwhile(caller: Caller) -> Told:
            began = time.monotonic()
            while listens(pid, gateway.up.port):
                assert time.monotonic() - began < PATIENCE_SECONDS, "the process goes on listening"
                await asyncio.sleep(0.01)
            late = asyncio.create_task(caller.call(Ask("while-it-ends", "Still there?", 4)))
            while start_time(pid) is not None:
                assert time.monotonic() - began < PATIENCE_SECONDS, "the process did not end"
                await asyncio.sleep(0.01)
            ended.append(time.monotonic() - began)
            return await late

        self.told, late = asyncio.run(self._under_streams(STREAMS, act, meanwhile))
        assert isinstance(late, Told)
        endings = Counter(f"{one.ending} {one.code or ''}".strip() for one in self.told)
        report.claim(
            f"SIGTERM under {STREAMS} open streams: each ends with an error event",
            endings == {"error event shutting_down": STREAMS},
            _counted(endings),
        )
        report.claim(
            f"its process ends within the limit ({GRACE_SECONDS:g} s, and at most {MARGIN_SECONDS:g} s more)",
            ended[0] < GRACE_SECONDS + MARGIN_SECONDS,
            f"after {ended[0]:.1f} s",
        )
        until(lambda: "api-1 is back" in gateway.said(), "api-1 is back", 60)
        said = re.search(r"api-1 died \((.+)\)", gateway.said())
        report.claim("with exit code 0", said is not None and said[1] == "exit code 0", said and said[1])
        report.claim(
            "a call that comes while it ends is answered by the next process",
            late.ending == "whole",
            f"{late.ending} {late.status} after {late.seconds:.1f} s",
        )
        self.tell_ended_streams("SIGTERM")

    def ctrl_c(self) -> None:
        gateway, report = self.gateway, self.report
        known = self._family()

        async def meanwhile(_: Caller) -> None:
            await asyncio.to_thread(self._wait_exit)

        began = time.monotonic()
        self.told, _ = asyncio.run(
            self._under_streams(FEWER_STREAMS, lambda: self.terminal.press(CTRL_C), meanwhile)
        )
        took = time.monotonic() - began
        assert gateway.up.process is not None
        code = gateway.up.process.returncode
        report.claim(
            f"Ctrl-C of `up` under {FEWER_STREAMS} open streams ends with exit code 0",
            code == 0,
            f"{code}, after {took:.1f} s",
        )
        endings = Counter(f"{one.ending} {one.code or ''}".strip() for one in self.told)
        report.claim(
            "each stream ends with an error event",
            endings == {"error event shutting_down": FEWER_STREAMS},
            _counted(endings),
        )
        self._tell_remains("after Ctrl-C", known)
        report.claim("ready.json is gone", not (gateway.up.home / "ready.json").exists())

    def kill_supervisor_and_start(self) -> None:
        async def meanwhile(_: Caller) -> None:
            await asyncio.to_thread(self._wait_exit)
            await asyncio.to_thread(self.start, "the next start, at once after kill -9 of the supervisor")

        self.told, _ = asyncio.run(self._under_streams(FEWER_STREAMS, self._kill, meanwhile))
        endings = Counter(f"{one.ending} {one.code or ''}".strip() for one in self.told)
        self.report.claim(
            "kill -9 of the supervisor: each stream ends with all its tokens or an error event",
            all(
                one.ending == "error event"
                or (one.ending == "whole" and (one.usage or {}).get("completion_tokens") == TOKENS)
                for one in self.told
            ),
            _counted(endings),
        )

    def kill_supervisor_and_wait(self) -> None:
        known = self._family()
        self._kill()
        self._wait_exit()
        began = time.monotonic()
        home = self.gateway.up.home
        with contextlib.suppress(AssertionError):
            until(lambda: not known.left(home), "no orphan", ORPHAN_SECONDS)
        took = time.monotonic() - began
        self._tell_remains(f"{took:.1f} s after kill -9 of the supervisor", known)

    def tell_ended_streams(self, what: str) -> None:
        """One row for each stream, and no charge for any."""
        gateway = self.gateway
        app = gateway.app_id()
        url = gateway.ready()["database_url"]
        tags = {one.ask.tag for one in self.told}

        def settled() -> bool:
            return gateway.drained() and tags <= books.read(url, app).by_tag().keys()

        with contextlib.suppress(AssertionError):
            until(settled, "all journals are in the books", DRAIN_SECONDS)
        kept = books.read(url, app)
        kept.rows = {id: row for id, row in kept.rows.items() if row["end_user"] in tags}
        outcomes = Counter(row["outcome"] for row in kept.rows.values())
        missing = tags - kept.by_tag().keys()
        self.report.claim(f"{what}: one row for each stream", not missing, _counted(outcomes))
        faults = [fault for claim in books.match(self.told, kept).faults.values() for fault in claim]
        whole = sum(one.ending == "whole" for one in self.told)
        self.report.claim(
            f"{what}: one charge for each of {whole} streams that came whole, and none for the others",
            not faults,
            "; ".join(faults[:EXAMPLES]),
        )
        code, document = gateway.verify()
        self.report.claim(f"{what}: ledger verify finds nothing", code == 0, differences(document))

    async def _under_streams(
        self,
        count: int,
        act: Callable[[], None],
        meanwhile: Callable[[Caller], Coroutine[None, None, Told | None]],
    ) -> tuple[list[Told], Told | None]:
        """Act once `count` streams have begun; what each was told."""
        caller = self.gateway.caller(PATIENCE_SECONDS)
        asks = []
        for _ in range(count):
            self.number += 1
            more = {"ignore_eos": True}  # of vLLM: the random weights must not end it before we do
            tag, prompt = f"stream-{self.number:04d}", f"Begin with {self.rng.random()}."
            ask = Ask(tag, prompt, TOKENS, stream=True, shows_usage=True, more=more)
            asks.append(asyncio.create_task(caller.call(ask)))
        deadline = time.monotonic() + BEGIN_SECONDS
        while caller.begun < count:
            assert time.monotonic() < deadline, f"{caller.begun} of {count} streams began"
            assert not any(ask.done() for ask in asks), next(ask.result() for ask in asks if ask.done())
            await asyncio.sleep(0.01)
        act()
        late = await meanwhile(caller)
        told = list(await asyncio.gather(*asks))
        caller.close()
        return told, late

    def _kill(self) -> None:
        assert self.gateway.up.process is not None
        self.gateway.up.process.kill()

    def _wait_exit(self) -> None:
        process = self.gateway.up.process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)

    def _family(self) -> Family:
        process = self.gateway.up.process
        assert process is not None
        return family(process.pid)

    def _tell_remains(self, what: str, known: Family) -> None:
        up = self.gateway.up
        left = known.left(up.home)
        self.report.claim(
            f"{what}: no process of ours is left",
            not left,
            "; ".join(left[:EXAMPLES]) or f"of {len(known.members)}",
        )
        first = up.ports["--engine-port"]
        ports = sorted({*up.ports.values(), *range(first, first + REPLICAS)})
        ours = held(ports)
        self.report.claim(f"{what}: no port is held", not ours, ours or f"of {len(ports)}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
