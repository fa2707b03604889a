"""Everything that can go wrong in this package; each message is one sentence that tells what to do."""


class EngineError(Exception):
    """Base of the errors of the engine package."""


class InvalidSetting(EngineError):
    """A model, version or replica was described with a value that cannot be used. `field` names it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class DuplicateName(EngineError):
    """A model, version or replica of that name exists already. `field` names what was doubled."""

    def __init__(self, message: str, field: str = "name") -> None:
        super().__init__(message)
        self.field = field


class NotRegistered(EngineError):
    """No model, version or replica of that name or id."""
