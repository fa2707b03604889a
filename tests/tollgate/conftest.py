"""What tests of `tollgate up` share."""

from collections.abc import Iterator

import pytest

from tests.fakes.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def quick_engine() -> Iterator[ScriptedEngine]:
    """An engine that runs already and answers at once, for tests that are not about engines."""
    with ScriptedEngine() as engine:
        yield engine
