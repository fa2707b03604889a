"""An API process as far as limits go, for tests with several: orders come on stdin, counts go to stdout.

python -m tests.api.limits_process URL LEASE_SECONDS PICKLED_APP_HEX
Orders, one a line: `admit COUNT TOKENS HOLD` (all at once), `settle SPENT TOKENS` (all that is open), `end`.
Each is answered with one line of JSON: how many of each decision, or null.
"""

import asyncio
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import uvloop

from api.access.directory import App
from api.limits.decisions import Admitted
from tests.api.gate import gate


async def obey(url: str, lease: float, app: App) -> None:
    loop = asyncio.get_running_loop()
    async with gate(url, lease=lease) as door:
        inside: list[str] = []
        say(None)
        while order := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            if order[0] == "admit":
                count, tokens, hold = map(int, order[1:])
                outcomes = await asyncio.gather(
                    *(door.admit(app, tokens=tokens, hold=hold, end_user="anna") for _ in range(count))
                )
                inside += [call_id for call_id, decision in outcomes if isinstance(decision, Admitted)]
                say(Counter(type(decision).__name__ for _, decision in outcomes))
            elif order[0] == "settle":
                spent, tokens = map(int, order[1:])
                for call_id in inside:
                    door.limiter.settle(call_id, spent=spent, tokens=tokens)
                inside.clear()
                await door.all_settled()
                say(None)
            else:
                break


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


class LimitsProcess:
    """The parent's side of one."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._orders: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def order(self, line: str) -> None:
        self._orders.write(line + "\n")
        self._orders.flush()

    def answer(self) -> Any:
        line = self._answers.readline()
        assert line, "the process died"
        return json.loads(line)


@contextmanager
def limits_process(url: str, app: App, lease: float = 30.0) -> Iterator[LimitsProcess]:
    """One process, ready."""
    words = [sys.executable, "-m", "tests.api.limits_process", url, str(lease), pickle.dumps(app).hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            started = LimitsProcess(process)
            started.answer()
            yield started
        finally:
            process.kill()


if __name__ == "__main__":
    uvloop.run(obey(sys.argv[1], float(sys.argv[2]), pickle.loads(bytes.fromhex(sys.argv[3]))))
