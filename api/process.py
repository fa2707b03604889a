"""One API process: its parts made, served, and ended in order."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
import uvloop

from api.app import create_app
from api.lane.counter import Counter
from api.lane.lane import Lane
from api.lane.protocol import bound_to
from api.limits.limiter import Limiter
from api.limits.spent import LedgerSpent
from api.settings import Settings
from api.snapshot import Snapshot
from engine.balancer import Balancer
from engine.cache import ResultCache
from engine.upstream import Upstreams
from engine.valkey import ValkeyClient
from ledger.journal.writer import Journal
from migrations.check import check
from migrations.errors import DatabaseUnreachable

FILES_WANTED = 65_536
FILES_LEAST = 4_096
BACKLOG = 4_096
DATABASE_SECONDS = 30.0  # an outage of Postgres that is waited out at the start
DATABASE_POLL_SECONDS = 0.25
# uvicorn waits so much longer than the lane for connections to close.
AFTER_LANE_SECONDS = 2.0

log = logging.getLogger("api")


class Server(uvicorn.Server):
    """uvicorn's server without its habit of killing the process by the signal that ended it: the journal is
    synced after the last connection closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises what keeps it from starting (see `__main__`)."""
    raise_file_limit()
    wait_for_schema(settings.database_url)
    uvloop.run(serve(settings))


def wait_for_schema(database_url: str) -> None:
    """Raises SchemaMismatch, AddressMalformed, and DatabaseUnreachable when Postgres stays away for
    DATABASE_SECONDS.

    Waiting here is quicker than being started anew: after an outage calls are served as soon as it ends.
    """
    deadline = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            return check(database_url)
        except DatabaseUnreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(DATABASE_POLL_SECONDS)


async def serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    snapshot = Snapshot(settings.database_url)
    await snapshot.start()
    spare_the_collector()
    limits_client = ValkeyClient(settings.limits_url, loop, name="limits")
    cache_client = ValkeyClient(settings.cache_url, loop, name="cache", deadline=0.5, patience=0.0)
    journal = Journal(settings.journal, loop=loop, strict=settings.strict_journal)
    limiter = Limiter(limits_client, loop=loop, spent=LedgerSpent(settings.database_url))
    lane = Lane(
        loop=loop,
        snapshot=snapshot,
        limiter=limiter,
        cache=ResultCache(cache_client),
        journal=journal,
        balancer=Balancer(),
        upstreams=Upstreams(loop),
        counter=Counter(),
        patience=settings.patience,
        grace_seconds=settings.grace_seconds,
    )

    def health() -> dict[str, Any]:
        return {
            "snapshot": snapshot.connected,
            "limits": limits_client.connected and not limiter.refusing,
            "journal": not journal.full_reason,
        }

    server = Server(
        uvicorn.Config(
            create_app(snapshot=snapshot, database_url=settings.database_url, health=health),
            host=settings.host,
            port=settings.port,
            http=bound_to(lane),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(settings.grace_seconds + AFTER_LANE_SECONDS),
        )
    )
    try:
        await server.serve(sockets=inherited(settings.socket_fd))
    finally:
        await lane.stop()
        await limiter.stop()
        await journal.stop()
        await snapshot.stop()
        limits_client.close()
        cache_client.close()


def spare_the_collector() -> None:
    """What was loaded so far lives as long as the process, and calls leave no cycles behind: the collector
    need not look at either at every turn (it was 9 % of a busy process)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def inherited(fd: int | None) -> list[socket.socket] | None:
    return None if fd is None else [socket.socket(fileno=fd)]


def raise_file_limit() -> None:
    """Each caller and each engine connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < FILES_LEAST:
        log.warning(
            "only %d files may be open, so about %d calls at once; raise 'ulimit -n'", wanted, wanted // 2
        )
