"""The wires that the lane speaks: one file each, found by path."""

from api.lane.dialects.chat import ChatCompletions
from api.lane.dialects.completions import Completions
from api.lane.dialects.dialect import Ask, Dialect
from api.lane.dialects.embeddings import Embeddings
from api.lane.dialects.messages import Messages
from api.lane.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Completions(), Embeddings(), Responses(), Messages())
BY_PATH: dict[bytes, Dialect] = {dialect.path: dialect for dialect in DIALECTS}

__all__ = ["BY_PATH", "DIALECTS", "Ask", "Dialect"]
