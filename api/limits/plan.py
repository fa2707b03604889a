"""What the limits server is told about an app: keys and limits, packed once and not per call."""

from dataclasses import dataclass
from hashlib import blake2b

from api.access.directory import App, Budget, Subject
from engine.resp import pack

WINDOWS = (("requests", "minute"), ("tokens", "minute"), ("requests", "day"), ("tokens", "day"))
PERIODS = ("total", "day", "month")
# The limits server counts in signed 64 bits. Larger budgets count as this much (8 million of the currency),
# and no call may hold more than HOLD_MAX (a million), so that no sum of both overflows.
AMOUNT_MAX = 8 * 10**18
HOLD_MAX = 10**18

_HEADERS = b"x-ratelimit-limit-%b: %%b\r\nx-ratelimit-remaining-%b: %%b\r\nx-ratelimit-reset-%b: %%b\r\n"


@dataclass(frozen=True, slots=True)
class Scripts:
    """The shas of the scripts, and who this process is."""

    admit: bytes
    settle: bytes
    renew: bytes
    owner: bytes
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One app, or one end user of it, as packed commands.

    admit, settle: all but the last argument. renew_keys, slots: whose leases are renewed, and '10' when
    the app has slots and the user has none.
    headers: a template for what an admitted call's reply carries. tokens_max: a call that needs more tokens
    can never pass (None: no such limit). currency: of the budgets; None without any, "" when they differ.
    per_user: end users have limits of their own, so theirs is another plan.
    """

    app: App
    user: bytes  # digest of the end user, b"-" without limits per end user
    end_user: str | None
    admit: bytes
    settle: bytes
    renew_keys: tuple[bytes, ...]
    slots: bytes
    headers: bytes
    tokens_max: int | None
    currency: str | None
    per_user: bool


def key(app_id: str, what: str, user: bytes = b"-") -> bytes:
    """The name of one of an app's keys; the braces keep all keys of an app on one node of a cluster."""
    if user == b"-":
        return b"tollgate:{%b}:%b" % (app_id.encode(), what.encode())
    return b"tollgate:{%b}:user:%b:%b" % (app_id.encode(), user, what.encode())


def digest(end_user: str) -> bytes:
    """An end user's name in keys and records: the limits server need not know who it is. 32 hex digits."""
    return blake2b(end_user.encode(), digest_size=16).hexdigest().encode()


def make_plan(app: App, end_user: str | None, scripts: Scripts) -> Plan:
    """The plan of an app; with an end user that has limits of its own, of both."""
    subjects: list[tuple[Subject, bytes]] = [("app", b"-")]
    user = b"-"
    if end_user is not None and _has_limits(app, "end_user"):
        user = digest(end_user)
        subjects.append(("end_user", user))
    keys = [key(app.id, what) for what in ("state", "ring", "calls", "slots", "spent")]
    renew_keys = [key(app.id, what) for what in ("calls", "slots", "spent")]
    if user != b"-":
        keys += [key(app.id, what, user) for what in ("state", "ring", "slots", "spent")]
        renew_keys += [key(app.id, what, user) for what in ("slots", "spent")]
    limits = [value for subject, _ in subjects for value in _limits(app, subject)]
    slots = b"".join(_has_slots(app, subject) for subject, _ in subjects)
    count = b"%d" % len(keys)
    names = {subject for subject, _ in subjects}
    limited = [limit for limit in app.limits if limit.subject in names]
    named = {limit.what for limit in limited}
    return Plan(
        app=app,
        user=user,
        end_user=end_user if user != b"-" else None,
        admit=_without_last(
            (b"EVALSHA", scripts.admit, count, *keys, scripts.owner, user, b"%d" % scripts.lease_ms, *limits)
        ),
        settle=_without_last((b"EVALSHA", scripts.settle, count, *keys, slots)),
        renew_keys=tuple(renew_keys),
        slots=slots,
        headers=b"".join(
            _HEADERS % (what, what, what) for what in (b"requests", b"tokens") if what.decode() in named
        ),
        tokens_max=min((limit.value for limit in limited if limit.what == "tokens"), default=None),
        currency=_currency({budget.currency for budget in app.budgets if budget.subject in names}),
        per_user=_has_limits(app, "end_user"),
    )


def with_last(packed: bytes, last: bytes) -> bytes:
    """A command packed by a plan, with the argument that it lacks."""
    return b"%b$%d\r\n%b\r\n" % (packed, len(last), last)


def _without_last(args: tuple[bytes, ...]) -> bytes:
    packed = pack(args)
    end = packed.index(b"\r\n")
    return b"*%d" % (len(args) + 1) + packed[end:]


def _has_limits(app: App, subject: Subject) -> bool:
    return any(limit.subject == subject for limit in app.limits) or any(
        budget.subject == subject for budget in app.budgets
    )


def _currency(currencies: set[str]) -> str | None:
    return currencies.pop() if len(currencies) == 1 else "" if currencies else None


def _limits(app: App, subject: Subject) -> list[bytes]:
    """The eight limits of a subject as the admit script takes them."""
    values: dict[tuple[str, str], int] = {
        (limit.what, limit.window): limit.value for limit in app.limits if limit.subject == subject
    }
    found = [b"%d" % values.get(window, 0) for window in WINDOWS]
    found.append(b"%d" % min((values[name] for name in values if name[0] == "concurrency"), default=0))
    budgets: dict[str, Budget] = {b.period: b for b in app.budgets if b.subject == subject}
    for period in PERIODS:
        budget = budgets.get(period)
        if budget is None:
            found.append(b"-")
        else:
            found.append(b"%d" % min(max(budget.amount, 0), AMOUNT_MAX) if budget.hard else b"~")
    return found


def _has_slots(app: App, subject: Subject) -> bytes:
    limited = any(limit.subject == subject and limit.what == "concurrency" for limit in app.limits)
    return b"1" if limited else b"0"
