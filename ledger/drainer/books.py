"""Writes groups of calls into Postgres: one transaction each, with the journal positions it stands for."""

import logging
from collections.abc import Iterable, Sequence
from datetime import date

import psycopg

from ledger.drainer import statements
from ledger.drainer.matching import Item, TrackedFile
from ledger.drainer.rows import ATTEMPT_COLUMNS, CALL_COLUMNS, NULL, attempt_lines, call_line
from ledger.ids import month_of
from ledger.journal.records import OpenRecord
from ledger.journal.segments import SegmentName
from ledger.money import format_amount

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5
_COPY_CALLS = f"COPY incoming_calls ({', '.join(CALL_COLUMNS)}) FROM STDIN"
_COPY_ATTEMPTS = f"COPY incoming_attempts ({', '.join(ATTEMPT_COLUMNS)}) FROM STDIN"
_NO_TRANSFER = (NULL, NULL, NULL, NULL)
_MONTHS = range(
    2020, 2100
)  # what ensure_month makes; an id outside of them finds no partition and is refused

# Of a row, not of the server or the way to it: trying again would end the same.
_REFUSED = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,  # a key too long for its index
    TypeError,  # the rest: a field of a type that cannot be put into a row
    ValueError,
    AttributeError,
)

# kind, app or None for the house, currency
_Account = tuple[str, str | None, str]


class Books:
    """One connection, made when it is needed. Methods raise psycopg.Error when Postgres is away."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._accounts: dict[_Account, str] = {}
        self._months: set[tuple[int, int]] = set()
        self.calls = 0  # written since the start

    def positions(self, names: Sequence[SegmentName]) -> dict[SegmentName, int]:
        """How far these files are in the books, in bytes; what is not there is missing."""
        with self._open().transaction():
            rows = self._open().execute(
                statements.POSITIONS, ([name.host for name in names], [str(name) for name in names])
            )
            known = {(host, name): position for host, name, position in rows}
        found = {}
        for name in names:
            position = known.get((name.host, str(name)))
            if isinstance(position, int):
                found[name] = position
        return found

    def write(self, items: Sequence[Item]) -> None:
        """Book all of these. What Postgres refuses is found by halving and put into quarantine; the rest is
        written."""
        try:
            self._write_group(items)
        except _REFUSED as error:
            self._forget()  # the reason may be a month or an account that someone dropped
            if len(items) > 1:
                half = len(items) // 2
                self.write(items[:half])
                self.write(items[half:])
            elif items[0].refusal is None:
                items[0].refusal = _reason(error)
                self.write(items)
            else:
                raise

    def mark(self, files: Sequence[TrackedFile], *, finished: bool = False) -> None:
        """Note how far these files were read, where nothing of it waits to be written."""
        with self._open().transaction():
            self._mark([(file, file.read_to) for file in files], finished)
        for file in files:
            file.committed = max(file.committed, file.read_to)

    def drop_connection(self) -> None:
        """After an error: the next call connects anew."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="tollgate-drainer",
                # A server that vanished from the network is noticed within about ten seconds.
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=10_000,  # ms
            )
            connection.execute(statements.INCOMING_CALLS)
            connection.execute(statements.INCOMING_ATTEMPTS)
            # A journal file is deleted after the commit, so the commit must be on disk by then.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            self._forget()  # it may lead to another server, or to a backup that was restored
            self._connection = connection
        return self._connection

    def _forget(self) -> None:
        """What is known of the database is asked anew."""
        self._months.clear()
        self._accounts.clear()

    def _write_group(self, items: Sequence[Item]) -> None:
        calls = [item for item in items if item.refusal is None and item.opened is not None]
        self._ensure_months(calls)
        with self._open().transaction():
            accounts = self._ensure_accounts(calls)
            self._book(calls, accounts)
            self._quarantine(items)
            self._mark([(item.file, item.end) for item in items], finished=False)
        self._accounts.update(accounts)
        self.calls += len(calls)

    def _book(self, items: Sequence[Item], accounts: dict[_Account, str]) -> None:
        lines: list[str] = []
        attempts: list[str] = []
        for item in items:
            opened = item.opened
            if opened is None:
                continue
            lines.append(call_line(item, opened, _transfer(item, opened, accounts)))
            if item.closed is not None and item.closed.attempts:
                attempts += attempt_lines(opened.id, item.closed.attempts)
        self._copy(_COPY_CALLS, lines)
        self._copy(_COPY_ATTEMPTS, attempts)
        if lines:
            self._open().execute(statements.BOOK_CALLS, prepare=True)
        if attempts:
            self._open().execute(statements.BOOK_ATTEMPTS, prepare=True)

    def _copy(self, statement: str, lines: list[str]) -> None:
        if lines:
            with self._open().cursor() as cursor, cursor.copy(statement.encode()) as copy:
                copy.write("\n".join((*lines, "")).encode())

    def _ensure_months(self, items: Iterable[Item]) -> None:
        wanted = set()
        for item in items:
            try:
                month = month_of(item.opened.id) if item.opened else None
            except (ValueError, TypeError):
                continue  # no id of ours: Postgres will refuse the row
            if month is not None and month not in self._months and month[0] in _MONTHS:
                wanted.add(month)
        for month in sorted(wanted):
            self._open().execute("SELECT ensure_month(%s)", (date(*month, 1),))
            self._months.add(month)

    def _ensure_accounts(self, items: Iterable[Item]) -> dict[_Account, str]:
        """Ids of all accounts that the items touch; those made now exist only if the transaction ends
        well."""
        wanted = {account for item in items for account in _accounts_of(item)}
        missing = sorted(wanted - self._accounts.keys(), key=str)
        found = {account: self._accounts[account] for account in wanted & self._accounts.keys()}
        if missing:
            columns = [list(column) for column in zip(*missing, strict=True)]
            self._open().execute(statements.MAKE_ACCOUNTS, columns)
            for kind, app, currency, id in self._open().execute(statements.FIND_ACCOUNTS, columns):
                found[str(kind), None if app is None else str(app), str(currency)] = str(id)
        return found

    def _quarantine(self, items: Sequence[Item]) -> None:
        orphans = {
            item.closed.id
            for item in items
            if item.closed is not None and item.opened is None and item.refusal is None
        }
        known: set[object] = set()
        if orphans:
            known = {id for (id,) in self._open().execute(statements.KNOWN_CALLS, (list(orphans),))}
        for item in items:
            if item.closed is not None and item.closed.id in orphans and item.refusal is None:
                if item.closed.id in known:
                    continue  # written twice after a failing write, and in the books already
                item.refusal = f"a close without its open: call {item.closed.id}"
            if item.refusal is None:
                continue
            log.error("quarantined: %s at byte %d: %s", item.file.text, item.offset, item.refusal)
            self._open().execute(
                statements.QUARANTINE,
                (item.file.name.host, item.file.text, item.offset, item.record(), item.refusal),
            )

    def _mark(self, positions: Iterable[tuple[TrackedFile, int]], finished: bool) -> None:
        ends: dict[TrackedFile, int] = {}
        for file, end in positions:
            ends[file] = max(end, ends.get(file, 0))
        rows = [(file.name.host, file.text, end, finished) for file, end in ends.items()]
        self._open().execute(statements.MARK, [list(column) for column in zip(*rows, strict=True)])


def _accounts_of(item: Item) -> tuple[_Account, ...]:
    """Debit and credit account of the item's transfer; none where no money moves."""
    opened, closed = item.opened, item.closed
    if opened is None:
        return ()
    if closed is None:
        if opened.hold > 0:
            return ("write_off", None, opened.currency), ("provider_cost", None, opened.currency)
    elif closed.charge > 0:
        return ("wallet", opened.app_id, opened.currency), ("revenue", None, opened.currency)
    return ()


def _transfer(item: Item, opened: OpenRecord, accounts: dict[_Account, str]) -> Sequence[str]:
    sides = _accounts_of(item)
    if not sides:
        return _NO_TRANSFER
    debit, credit = sides
    kind, amount = ("charge", item.closed.charge) if item.closed else ("write_off", opened.hold)
    return kind, accounts[debit], accounts[credit], format_amount(amount)


def _reason(error: Exception) -> str:
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    return str(error)
