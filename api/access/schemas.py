"""What the admin API takes and gives for organisations, apps and keys: decimals as text, ISO 8601 times."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from api.access.directory import Limit
from api.access.repository import BudgetRow
from ledger.errors import BadAmount
from ledger.money import format_amount, from_numeric, parse_amount, to_numeric


def exact(amount: object) -> Decimal:
    """Decimal text or a whole number; a float has been rounded before anyone could look at it."""
    if not isinstance(amount, str | int | Decimal) or isinstance(amount, bool):
        raise ValueError("must be decimal text, such as 12.50")
    try:
        return to_numeric(parse_amount(amount))
    except BadAmount as error:
        raise ValueError("must be decimal text of at most 12 decimals, 0 or more, such as 12.50") from error


Amount = Annotated[
    Decimal,
    BeforeValidator(exact, json_schema_input_type=str),
    PlainSerializer(lambda amount: format_amount(from_numeric(amount)), return_type=str),
]


def iso(time: object) -> object:
    """ISO 8601 text only: a number could mean seconds or milliseconds."""
    if not isinstance(time, str) or not time.strip("+-.0123456789"):
        raise ValueError("must be an ISO 8601 time with its zone, such as 2027-01-01T00:00:00Z")
    return time


# JSON has no times of its own, so text is read although bodies are strict.
Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(iso)]


class Body(BaseModel):
    """Base of what comes in: an unknown field is an error, not silence, and no value is taken for another.

    True is no 1, and "5" no 5.
    """

    model_config = ConfigDict(extra="forbid", from_attributes=True, strict=True)


class OrganisationIn(Body):
    name: str


class AppIn(Body):
    organization: str = Field(description="Id or name.")
    name: str


class KeyIn(Body):
    app: str | None = Field(None, description="Id, or ORG/APP; without one the key is an admin key.")
    name: str
    scopes: list[str] | None = None
    expires_at: Moment | None = None


class LimitBody(Body):
    """At most `value` of `what` per `window`."""

    subject: Literal["app", "end_user"] = "app"
    what: Literal["requests", "tokens", "concurrency"]
    window: Literal["minute", "day", "none"]
    value: int = Field(ge=1, le=2**63 - 1)

    def row(self) -> Limit:
        return Limit(self.subject, self.what, self.window, self.value)


class BudgetBody(Body):
    """At most `amount` per `period`; a hard budget refuses, a soft one only says so."""

    subject: Literal["app", "end_user"] = "app"
    period: Literal["total", "day", "month"]
    amount: Amount
    currency: str = Field("USD", pattern="^[A-Z]{3}$")
    hard: bool = True

    def row(self) -> BudgetRow:
        return BudgetRow(self.subject, self.period, self.amount, self.currency, self.hard)


class LimitsIn(Body):
    limits: list[LimitBody] = Field(max_length=12)


class BudgetsIn(Body):
    budgets: list[BudgetBody] = Field(max_length=6)


class Out(BaseModel):
    """Base of what goes out; filled from the rows by their attributes."""

    model_config = ConfigDict(from_attributes=True)


class OrganisationOut(Out):
    object: Literal["organization"] = "organization"
    id: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


class AppOut(Out):
    object: Literal["app"] = "app"
    id: str
    organization_id: str = Field(validation_alias="organisation_id")
    organization: str = Field(validation_alias="organisation")
    name: str
    created_at: datetime
    revoked_at: datetime | None


class LimitsOut(Out):
    object: Literal["list"] = "list"
    data: list[LimitBody]


class BudgetsOut(Out):
    object: Literal["list"] = "list"
    data: list[BudgetBody]


class KeyOut(Out):
    """A key without itself: `prefix` is all that is kept of it in clear."""

    object: Literal["key"] = "key"
    id: str
    app_id: str | None
    app: str | None = Field(description="ORG/APP, null for admin keys.")
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKeyOut(KeyOut):
    key: str = Field(description="The key itself, shown this once.")


class OrganisationsOut(Out):
    object: Literal["list"] = "list"
    data: list[OrganisationOut]
    has_more: bool


class AppsOut(Out):
    object: Literal["list"] = "list"
    data: list[AppOut]
    has_more: bool


class KeysOut(Out):
    object: Literal["list"] = "list"
    data: list[KeyOut]
    has_more: bool
