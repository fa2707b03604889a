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
    """No model, version or replica of that name or id. `field` names what said it, where it is a field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class EngineCannotStart(EngineError):
    """An engine of ours cannot be started: a taken port, a missing file or package."""


class EnvironmentNotBuilt(EngineError):
    """The environment or checkpoint that an engine needs could not be made."""


class EngineUnreachable(EngineError):
    """Nothing answers at an engine's address, or what answers is not an inference engine."""


class EngineHasNoSuchModel(EngineError):
    """The engine answers but serves other models. `served` lists them."""

    def __init__(self, message: str, served: tuple[str, ...]) -> None:
        super().__init__(message)
        self.served = served


class ValkeyError(EngineError):
    """Base of what a Valkey call can end with besides a reply."""


class ValkeyUnavailable(ValkeyError):
    """The server is away, did not answer in time, or too many calls wait: the call may have run or not."""


class ValkeyNotSent(ValkeyUnavailable):
    """The call never left this process, so it surely was not carried out."""


class ValkeyRefused(ValkeyError):
    """The server answered with an error; its text is the message."""

    @property
    def code(self) -> str:
        """The first word of the server's error: NOSCRIPT, OOM, ERR, ..."""
        return str(self).partition(" ")[0]


class CannotCount(EngineError):
    """The engine's tokenizer cannot be asked: the engine has none, is away, or refused the question."""
