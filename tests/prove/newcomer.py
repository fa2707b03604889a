"""From an empty clone with an empty home: `make up` reaches ready, and what it prints works pasted.

As the user who runs this, and when that is root as an ordinary user too. The short form starts from an
environment that is made already.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.prove.report import Report
from tests.waiting import until
from tollgate.supervisor.leftovers import MARK
from tollgate.supervisor.ports import free_ports

CHECKOUT = Path(__file__).resolve().parents[2]
ORDINARY = "nobody"
COLD_AIM = 180.0  # seconds; an aim on a quiet machine, printed and not judged
SECOND_MOST = 15.0  # seconds
START_MOST = 560.0
STOP_MOST = 40.0
PASTE_MOST = 120.0
PORTS = ("--port", "--postgres-port", "--broker-port", "--limits-port", "--cache-port", "--engine-port")


def run(short: bool, seed: int) -> Report:
    report = Report()
    me = pwd.getpwuid(os.geteuid()).pw_name
    _as(report, me, None, short)
    if os.geteuid() != 0:
        report.figure("as root", "not tried: this is no root shell")
    elif short:
        report.figure("as an ordinary user", "not tried in the short form")
    else:
        _as(report, "an ordinary user", pwd.getpwnam(ORDINARY), short)
    return report


def _as(report: Report, who: str, user: pwd.struct_passwd | None, short: bool) -> None:
    with _workplace(user) as folder:
        home = folder / "home"
        home.mkdir()
        clone = folder / "tollgate"
        if short:
            (clone / ".venv").parent.mkdir()
            command = [sys.executable, "-m", "tollgate", "up"]
        else:
            subprocess.run(["git", "clone", "-q", CHECKOUT, clone], check=True)
            command = []
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        numbers = free_ports(len(PORTS))
        words = [word for pair in zip(PORTS, map(str, numbers), strict=True) for word in pair]
        up = _Up(
            clone, home, user, [*command, *words] if command else ["make", "up", f"ARGS={' '.join(words)}"]
        )
        cold = up.start()
        report.claim(
            f"{who}: {'a first start' if short else 'make up in an empty clone'} is ready",
            True,
            f"{cold:.0f} s",
        )
        if not short and cold > COLD_AIM:
            report.figure("that is over the aim of", f"{COLD_AIM:.0f} s")
        _paste(report, who, up)
        gone = up.stop(numbers)
        report.claim(f"{who}: Ctrl-C leaves no process and no port", not gone, gone or "none")
        again = up.start()
        report.claim(
            f"{who}: the second start takes under {SECOND_MOST:.0f} s", again < SECOND_MOST, f"{again:.1f} s"
        )
        rows = up.paste(up.printed()[-1])
        report.claim(
            f"{who}: it finds the same books",
            "default/default" in rows,
            rows.split("default/default")[-1][:60].split("\n")[0],
        )
        gone = up.stop(numbers)
        report.claim(f"{who}: and stops clean", not gone, gone or "none")


def _paste(report: Report, who: str, up: _Up) -> None:
    chat, again, spend = up.printed()
    answer = json.loads(up.paste(chat))
    text = answer["choices"][0]["message"]["content"]
    report.claim(f"{who}: the printed chat call answers", bool(text), text[:60])
    said = up.paste(again)
    report.claim(
        f"{who}: the same again is a cache hit",
        "x-cache: hit" in said and text[:20] in said,
        said.split("\n")[0],
    )
    until(lambda: "default/default" in up.paste(spend), "the calls are in the books", 30)
    report.claim(f"{who}: the printed billing query shows them", True)


@contextlib.contextmanager
def _workplace(user: pwd.struct_passwd | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tollgate-newcomer-", dir="/var/tmp" if user else None))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Up:
    """One user's `make up`."""

    def __init__(self, clone: Path, home: Path, user: pwd.struct_passwd | None, command: list[str]) -> None:
        self.clone, self.home, self.user, self.command = clone, home, user, command
        self.log = home / "up.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def ready_file(self) -> Path:
        return self.clone / ".tollgate" / "ready.json"

    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))
        }
        path = "/usr/local/bin:/usr/bin:/bin" if self.user else os.environ["PATH"]
        return kept | {"HOME": str(self.home), "PATH": path, "TOLLGATE_HOME": str(self.clone / ".tollgate")}

    def identity(self) -> dict[str, object]:
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def start(self) -> float:
        """Start and wait until it is ready; the seconds that took."""
        began = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(  # type: ignore[call-overload]
                self.command, cwd=self.clone, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, **self.identity(),
            )  # fmt: skip
        self.process = process

        def look() -> bool:
            assert process.poll() is None, self.log.read_text()
            return self.ready_file.exists() and "Ctrl-C stops everything" in self.log.read_text()

        until(look, "make up is ready", START_MOST)
        return time.monotonic() - began

    def printed(self) -> list[str]:
        """The commands under "Try"."""
        lines = self.log.read_text().split("Try, in another terminal:")[1].splitlines()
        return [line.strip() for line in lines if line.startswith("  ") and not line.startswith("  #")]

    def paste(self, line: str) -> str:
        done = subprocess.run(  # type: ignore[call-overload]
            ["bash", "-c", line], cwd=self.clone, env=self.environment(), capture_output=True, text=True,
            timeout=PASTE_MOST, check=True, **self.identity(),
        )  # fmt: skip
        return str(done.stdout)

    def stop(self, ports: list[int]) -> list[str]:
        """Ctrl-C, as a terminal sends it; what is left afterwards."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(STOP_MOST)
        return self._processes() + [f"port {port}" for port in ports if _is_held(port)]

    def _processes(self) -> list[str]:
        """Processes that were started with this clone's TOLLGATE_HOME."""
        marks = {f"{name}={self.clone / '.tollgate'}".encode() for name in ("TOLLGATE_HOME", MARK)}
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marks & set((folder / "environ").read_bytes().split(b"\0")):
                    left.append(f"process {folder.name}")
        return left


def _is_held(port: int) -> bool:
    wanted = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in lines)
