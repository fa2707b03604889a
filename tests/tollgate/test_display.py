"""Output that is gone stops nothing: neither a pipe that nobody reads nor a terminal that was hung up."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

# Waits until the reader is gone, then tells all there is to tell.
TELLING = """
import contextlib
import sys
from tollgate.supervisor import display
from pathlib import Path

display.PROGRESS_SECONDS = 0.0
shown = getattr(display, sys.argv[1])()
shown.log_to(Path(sys.argv[2]))
with contextlib.suppress(OSError):
    print("begun", flush=True)
sys.stdin.read()
with shown.step("a step"):
    shown.progress("on its way")
    shown.say("a line")
shown.summary("all of it")
shown.say("another line")
shown.close()
sys.exit(7)
"""


def _tell(kind: str, log: Path, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", TELLING, kind, str(log)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm"},
    )


@pytest.mark.parametrize("kind", ["PlainDisplay", "LiveDisplay"])
@pytest.mark.parametrize("output", ["pipe", "terminal", "full disk"])
def test_the_run_goes_on_when_its_output_is_gone(kind: str, output: str, tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    if output == "full disk":
        ours, theirs = None, os.open("/dev/full", os.O_WRONLY)
    else:
        ours, theirs = os.pipe() if output == "pipe" else pty.openpty()
    telling = _tell(kind, log, theirs)
    os.close(theirs)
    if ours is not None:
        while b"begun" not in os.read(ours, 4096):
            pass
        os.close(ours)
    telling.communicate(timeout=20)
    assert telling.returncode == 7
    assert "another line" in log.read_text()
