"""Ports on this machine: which are free, and a clear word when one is not."""

from __future__ import annotations

import contextlib
import socket

from tollgate.errors import PortTaken

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def require_free(port: int, *, what: str, option: str, host: str = LOOPBACK) -> None:
    """Raise PortTaken when a server could not listen on the port."""
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free, one with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise PortTaken(port, what, option) from error
