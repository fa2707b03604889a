"""Errors of the command line and the supervisor: one sentence each: what is wrong, what to do."""

from __future__ import annotations


class TollgateError(Exception):
    """A reason to stop with exit code 1; its text is the one sentence that the person sees."""


class ServerFailed(TollgateError):
    """An embedded server or another child did not come up."""


class PortTaken(TollgateError):
    """Another process listens on a port that this one was told to use."""

    def __init__(self, port: int, what: str, option: str) -> None:
        super().__init__(
            f"Port {port} for {what} is taken by another process; stop it or choose another with {option}."
        )
        self.port = port
        self.option = option


class HomeInUse(TollgateError):
    """Another `tollgate up` runs in this home."""

    def __init__(self, home: object, pid: str) -> None:
        super().__init__(
            f"{home} is in use by a running `tollgate up` (process {pid or 'unknown'}); stop that one, "
            "or set TOLLGATE_HOME to another folder."
        )


class Unreachable(TollgateError):
    """A server or an engine that was named by address does not answer."""
