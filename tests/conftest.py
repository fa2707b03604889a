"""Fixtures for all tests: real servers, databases of one's own, engines whose every write is scripted."""

from collections.abc import Iterator

import pytest

from tests.fakes.scripted_engine import ScriptedEngine


@pytest.fixture(scope="session")
def _engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def engine(_engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """The scripted engine, clean. What it got must have been HTTP; tests that mean otherwise clear `faults`."""
    _engine.forget()
    yield _engine
    assert not _engine.faults
