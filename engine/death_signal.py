"""Processes that we start must not outlive us, however we end: the kernel is asked to see to it."""

import ctypes
import os
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, death_signal: int) -> Callable[[], None] | None:
    """For preexec_fn: the kernel sends the child this signal when the thread that forked it ends.

    parent: our own pid. What the child itself starts is not covered. None where the kernel is not Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = _libc.prctl

    def before_exec() -> None:
        # Runs after setuid, which would clear the setting; the parent may be gone already.
        prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec
