"""What tests of `tollgate up` share."""

from collections.abc import Iterator

import pytest

from tests.fakes import vllm_wire
from tests.fakes.received import Received
from tests.fakes.scripted_engine import Script, ScriptedEngine, good_answer


def _as_vllm(request: Received) -> Script:
    """A good answer to a chat call; routes that only take POST refuse GET, by which they are found."""
    if not request.target.endswith("/chat/completions"):
        return [vllm_wire.reply({"detail": "Not Found"}, 404)]
    if request.method == "GET":
        return [vllm_wire.reply({"detail": "Method Not Allowed"}, 405)]
    return good_answer(request)


@pytest.fixture(scope="module")
def quick_engine() -> Iterator[ScriptedEngine]:
    """An engine that runs already and answers at once, for tests that are not about engines."""
    with ScriptedEngine() as engine:
        engine.always(_as_vllm)
        yield engine
