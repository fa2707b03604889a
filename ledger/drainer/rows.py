"""A matched call as lines of COPY's text format. Money is text from here to NUMERIC, never a float."""

from collections.abc import Sequence

from ledger.drainer.matching import Item
from ledger.journal.records import Attempt, CloseRecord, OpenRecord
from ledger.money import format_amount

INTERRUPTED = "interrupted"

NULL = "\\N"
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

    Raises TypeError, ValueError where a field has a type that no row can have.
    """
    closed = item.closed or _interruption(opened)
    first_byte = closed.first_byte_us
    return "\t".join(
        (
            _text(opened.id),
            _text(opened.organisation_id),
            _text(opened.app_id),
            _text(opened.key_id),
            _text(opened.end_user),
            _text(opened.model),
            _text(closed.version_id),
            _text(closed.replica_id),
            _text(opened.endpoint),
            "t" if opened.stream else "f",
            _text(closed.outcome),
            str(closed.status or NULL),
            str(closed.prompt_tokens),
            str(closed.cached_tokens),
            str(closed.completion_tokens),
            str(closed.reasoning_tokens),
            _text(closed.usage_source),
            _text(opened.price_id),
            format_amount(closed.charge),
            _text(opened.currency),
            format_amount(opened.hold),
            str(opened.prompt_bound),
            _text(opened.cache),
            _texts(closed.flags),
            str(opened.admitted_us),
            NULL if first_byte is None else str(max(first_byte - opened.admitted_us, 0)),
            str(max(closed.ended_us - opened.admitted_us, 0)),
            _text(closed.error_code),
            _text(item.file.name.host),
            _text(item.file.text),
            *transfer,
        )
    )


def attempt_lines(call_id: str, attempts: Sequence[Attempt]) -> list[str]:
    """Lines of ATTEMPT_COLUMNS, numbered from 1 in the order of the attempts."""
    return [
        "\t".join(
            (
                _text(call_id),
                str(number),
                _text(attempt.kind),
                _text(attempt.replica_id),
                _text(attempt.outcome),
                str(attempt.status or NULL),
                str(attempt.prompt),
                str(attempt.cached),
                str(attempt.completion),
                str(attempt.started_us),
                str(max(attempt.ended_us - attempt.started_us, 0)),
                _text(attempt.error_code),
            )
        )
        for number, attempt in enumerate(attempts, 1)
    ]


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
    return value if value.isalnum() else value.translate(_ESCAPES)


def _texts(values: Sequence[str]) -> str:
    if not values:
        return "{}"
    quoted = ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return _text("{" + ",".join(quoted) + "}")
