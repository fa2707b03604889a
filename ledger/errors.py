"""What the ledger can refuse. Each class says in one sentence what happened and what to do."""


class LedgerError(Exception):
    """Something is wrong in the books, the journal or on the way between them."""


class JournalFull(LedgerError):
    """The journal cannot take another call: answer 503 and let the caller come back, for an unbilled call
    must not run."""

    status = 503
    code = "journal_full"


class CallNotOpen(LedgerError):
    """A close was handed in for a call that is not open: it was never opened, its open failed, or it was
    closed before."""


class DrainerRunning(LedgerError):
    """Another drainer already reads this journal folder: one is enough, leave it running."""


class BadAmount(LedgerError):
    """An amount that is not exact, negative or too large: write it as a decimal of at most 12 decimals."""

    status = 400
    code = "bad_amount"


class BadCurrency(LedgerError):
    """Not a currency code: three capital letters, such as USD."""

    status = 400
    code = "bad_currency"


class PriceExists(LedgerError):
    """The model has a price from that moment on already, and a price is never changed: set a later one."""

    status = 409
    code = "price_exists"
