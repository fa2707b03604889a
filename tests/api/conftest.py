"""The application over HTTP, shared by the tests of one module."""

from collections.abc import Iterator

import pytest

from ledger.ids import new_id
from tests.api.served_app import ServedApp, served_app_with_admin
from tests.waiting import until


@pytest.fixture(scope="module")
def served(database: str) -> Iterator[ServedApp]:
    with served_app_with_admin(database) as running:
        yield running


@pytest.fixture
def app_key(served: ServedApp) -> str:
    """A key of a fresh app, known to the process."""
    organisation = served.client.post("/admin/v1/orgs", json={"name": f"org-{new_id()}"}).json()
    app = served.client.post(
        "/admin/v1/apps", json={"organization": organisation["id"], "name": "app"}
    ).json()
    made = served.client.post("/admin/v1/keys", json={"app": app["id"], "name": "key"}).json()
    key: str = made["key"]
    until(lambda: served.snapshot.directory.find(key.encode()), "the key is known")
    return key
