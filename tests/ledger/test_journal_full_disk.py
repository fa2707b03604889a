"""A disk that is really full."""

import os
import subprocess
import sys

import pytest

OWN_MOUNTS = (
    ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
)


def test_on_a_full_disk_opens_are_refused_and_every_call_that_was_taken_is_closed() -> None:
    if subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of one's own can be had here")
    done = subprocess.run(
        [*OWN_MOUNTS, sys.executable, "-m", "tests.ledger.full_disk"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["refused:"] == "The journal has no room for another call (No space left on device)."
    taken = int(said["taken"])
    assert taken > 200
    assert said["closed"] == str(taken)
    assert said["records"] == str(2 * taken)
