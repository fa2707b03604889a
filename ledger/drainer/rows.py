"""A matched call as lines of COPY's text format. Money is text from here to NUMERIC, never a float."""

import re
from collections.abc import Sequence

from ledger.drainer.matching import Item
from ledger.journal.records import Attempt, CloseRecord, OpenRecord
from ledger.money import format_amount

INTERRUPTED = "interrupted"

NULL = "\\N"
_ODD = re.compile(r"[\\\t\n\r]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

CALL_COLUMNS = (
    "id", "organisation_id", "app_id", "key_id", "end_user", "model", "version_id", "replica_id", "endpoint",
    "stream", "outcome", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
    "usage_source", "price_id", "charge", "currency", "hold", "prompt_bound", "cache", "flags", "admitted_us",
    "first_byte_us", "duration_us", "error_code", "host", "journal",
    "transfer_kind", "debit_account", "credit_account", "amount",
)  # fmt: skip
ATTEMPT_COLUMNS = (
    "call_id", "number", "kind", "replica_id", "outcome", "status", "prompt_tokens", "cached_tokens",
    "completion_tokens", "started_us", "duration_us", "error_code",
)  # fmt: skip


def call_line(item: Item, opened: OpenRecord, transfer: Sequence[str]) -> str:
    """One line of CALL_COLUMNS. transfer: kind, debit account, credit account, amount, or four NULLs.

    Only what callers and engines can say is escaped. Raises TypeError, ValueError where no row can be made of
    it.
    """
    closed = item.closed or _interruption(opened)
    admitted = opened.admitted_us
    first = NULL if closed.first_byte_us is None else max(closed.first_byte_us - admitted, 0)
    kind, debit, credit, amount = transfer
    line = (
        f"{opened.id}\t{opened.organisation_id}\t{opened.app_id}\t{opened.key_id}\t"
        f"{_text(opened.end_user)}\t{_text(opened.model)}\t{closed.version_id or NULL}\t"
        f"{closed.replica_id or NULL}\t{opened.endpoint}\t{'t' if opened.stream else 'f'}\t"
        f"{closed.outcome}\t{closed.status or NULL}\t{closed.prompt_tokens}\t{closed.cached_tokens}\t"
        f"{closed.completion_tokens}\t{closed.reasoning_tokens}\t"
        f"{closed.usage_source}\t{opened.price_id or NULL}\t{format_amount(closed.charge)}\t"
        f"{opened.currency}\t{format_amount(opened.hold)}\t{opened.prompt_bound}\t{opened.cache}\t"
        f"{_texts(closed.flags)}\t{admitted}\t{first}\t{max(closed.ended_us - admitted, 0)}\t"
        f"{_text(closed.error_code)}\t{item.file.name.host}\t{item.file.text}\t{kind}\t{debit}\t{credit}\t"
        f"{amount}"
    )
    return _whole(line, CALL_COLUMNS)


def attempt_lines(call: str, attempts: Sequence[Attempt]) -> list[str]:
    """Lines of ATTEMPT_COLUMNS, numbered from 1 in the order of the attempts. Raises as `call_line` does."""
    return [
        _whole(
            f"{call}\t{number}\t{attempt.kind}\t{attempt.replica_id or NULL}\t{attempt.outcome}\t"
            f"{attempt.status or NULL}\t{attempt.prompt}\t{attempt.cached}\t{attempt.completion}\t"
            f"{attempt.started_us}\t{max(attempt.ended_us - attempt.started_us, 0)}\t"
            f"{_text(attempt.error_code)}",
            ATTEMPT_COLUMNS,
        )
        for number, attempt in enumerate(attempts, 1)
    ]


def _whole(line: str, columns: Sequence[str]) -> str:
    if line.count("\t") != len(columns) - 1 or "\n" in line:
        raise ValueError("a name of ours has a tab or a line end in it")
    return line


def _interruption(opened: OpenRecord) -> CloseRecord:
    """What is known of the end of a call whose process died: nothing, so nothing is charged."""
    return CloseRecord(
        id=opened.id,
        outcome=INTERRUPTED,
        status=0,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        usage_source="none",
        charge=0,
        ended_us=opened.admitted_us,
        first_byte_us=None,
        replica_id=opened.replica_id,
        version_id=opened.version_id,
        attempts=[],
        flags=[],
        error_code=None,
    )


def _text(value: str | None) -> str:
    if value is None:
        return NULL
    return value.translate(_ESCAPES) if _ODD.search(value) else value


def _texts(values: Sequence[str]) -> str:
    if not values:
        return "{}"
    quoted = ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return _text("{" + ",".join(quoted) + "}")
