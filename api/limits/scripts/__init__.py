"""The limiter's Lua scripts. Each runs on the keys of one app ({app} is their hash tag), or the census's."""

from importlib.resources import files

_FOLDER = files(__name__)


def _source(*names: str) -> bytes:
    return b"\n".join(_FOLDER.joinpath(f"{name}.lua").read_bytes() for name in names)


ADMIT = _source("windows", "admit")
SETTLE = _source("windows", "settle")
RENEW = _source("windows", "renew")
OPEN = _source("windows", "open")
CENSUS = _source("census")
