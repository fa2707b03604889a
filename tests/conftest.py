"""Fixtures for all tests: real servers, fresh databases, a scripted engine, a gateway."""

from collections.abc import Iterator

import pytest

from tests import databases
from tests.fakes.scripted_engine import ScriptedEngine
from tests.gateway import App, Gateway, running_gateway
from tests.real_engine import light_engine as light_engine
from tests.vllm_replicas import vllm_replicas as vllm_replicas
from tollgate.servers import Servers, running_servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """PostgreSQL and three Valkeys, from their wheels; one set for the whole session."""
    with running_servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture(scope="session")
def _template(servers: Servers) -> None:
    databases.make_template(servers.database_url)


@pytest.fixture(scope="module")
def database(servers: Servers, _template: None) -> Iterator[str]:
    """The URL of a migrated database that this module has to itself."""
    with databases.fresh_database(servers.database_url) as url:
        yield url


@pytest.fixture(scope="session")
def _engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def engine(_engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """The scripted engine, clean. What it gets must be HTTP; a test that means otherwise clears `faults`."""
    _engine.forget()
    yield _engine
    assert not _engine.faults


@pytest.fixture(scope="session")
def gateway(
    servers: Servers, _template: None, _engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway of one process before the scripted engine. Shared: a test that harms one starts its own."""
    folder = tmp_path_factory.mktemp("gateway")
    with (
        databases.fresh_database(servers.database_url) as database_url,
        running_gateway(servers, database_url, folder, engines=[_engine.url]) as running,
    ):
        yield running


@pytest.fixture
def app(gateway: Gateway) -> App:
    """An app of the shared gateway that this test has to itself."""
    return gateway.new_app()
