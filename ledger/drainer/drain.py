"""The drainer's loop: list, read, match, write, delete; and what it does while Postgres is away."""

import logging
from concurrent.futures import ThreadPoolExecutor

import psycopg

from ledger.drainer.books import Books
from ledger.drainer.folder import JournalFolder
from ledger.drainer.matching import Item, Matcher
from ledger.drainer.stopping import Stopping

log = logging.getLogger(__name__)

GROUP_CALLS = 5_000  # in one transaction
BUSY_SECONDS = 0.05  # between passes while there is something to write
IDLE_SECONDS = 0.5  # the longest pause
AWAY_SECONDS = (0.1, 5.0)  # first and longest pause while Postgres is away


class Drainer:
    """Moves journals into the books until `stopping`, then once more until all is read."""

    def __init__(self, folder: JournalFolder, books: Books, stopping: Stopping) -> None:
        self._folder = folder
        self._books = books
        self._stopping = stopping
        self._matcher = Matcher(folder.path, books.positions)
        self._group: list[Item] = []  # gathered and not known to be committed
        self._away = False
        self._found = 0  # items in the last pass
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._quiet = 0  # passes without any since the last

    def run(self) -> None:
        """Returns when `stopping`, and everything was written, or Postgres was away at that moment."""
        pause = BUSY_SECONDS
        while not self._stopping.asked:
            if not self.try_pass():
                self._wait_for_postgres()
                pause = BUSY_SECONDS
                continue
            if self._found >= GROUP_CALLS:
                continue
            pause = BUSY_SECONDS if self._found else min(pause * 2, IDLE_SECONDS)
            self._stopping.wait(pause)
        if not self.drain():
            log.warning("Postgres is away at the end: what is not written stays in the journal")

    def drain(self) -> bool:
        """Pass until nothing is left to read. False when Postgres went away."""
        self._quiet = 0
        while self._quiet < 2:  # only a second listing shows that a dead process left nothing more
            if not self.try_pass():
                return False
        return True

    def try_pass(self) -> bool:
        """One pass. False when Postgres is away; what was gathered is kept for the next one."""
        try:
            self._pass()
        except psycopg.Error as error:
            self._books.drop_connection()
            if not self._away:
                log.error(
                    "Postgres is away (%s): calls stay in the journal until it is back", _sentence(error)
                )
            self._away = True
            return False
        if self._away:
            log.warning("Postgres is back")
        self._away = False
        return True

    def _pass(self) -> None:
        if not self._group:
            self._matcher.listed(self._folder.journals())
            self._group = self._matcher.gather(GROUP_CALLS)
        self._found = len(self._group)
        if self._found >= GROUP_CALLS and not self._away:
            self._quiet = 0
            self._write_and_read_on()
        elif self._group:
            self._quiet = 0
            self._books.write(self._group)
            self._matcher.committed(self._group)
            self._group = []
        else:
            self._quiet += 1
            if self._quiet > 1:
                self._mark_opens()
        self._delete_finished()

    def _write_and_read_on(self) -> None:
        """There is a backlog: while Postgres works on this group, the thread reads the next."""
        following = self._thread.submit(self._matcher.gather, GROUP_CALLS)
        try:
            self._books.write(self._group)
        except psycopg.Error:
            self._group += following.result()
            raise
        written, self._group = self._group, following.result()
        self._matcher.committed(written)

    def _mark_opens(self) -> None:
        # Positions move with the calls written; opens alone move them only once it is quiet.
        moved = [file for file in self._matcher.files if file.read_to > file.committed]
        if moved:
            self._books.mark(moved)

    def _delete_finished(self) -> None:
        finished = self._matcher.finished()
        if not finished:
            return
        self._books.mark(finished, finished=True)
        for file in finished:
            (self._folder.path / file.text).unlink(missing_ok=True)
            self._matcher.forget(file)

    def _wait_for_postgres(self) -> None:
        pause, longest = AWAY_SECONDS
        while not self._stopping.wait(pause):
            if self.try_pass():
                return
            pause = min(pause * 2, longest)


def _sentence(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
