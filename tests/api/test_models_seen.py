"""GET /v1/models: what callers see of the models."""

import openai
import pytest

from ledger.ids import new_id
from tests.api.served_app import ServedApp
from tests.waiting import until


def test_callers_see_the_models_that_can_be_called_now_or_soon(served: ServedApp) -> None:
    client = served.client
    name = f"lab/model-{new_id()}"
    model = client.post("/admin/v1/models", json={"name": name, "engine_urls": ["http://127.0.0.1:9"]}).json()
    (version,) = model["versions"]
    (replica,) = version["replicas"]

    def listed() -> bool:
        return name in [row["id"] for row in client.get("/v1/models").json()["data"]]

    def seen() -> bool:
        return listed() and client.get(f"/v1/models/{name}").status_code == 200

    def hidden() -> bool:
        return not listed() and client.get(f"/v1/models/{name}").status_code == 404

    until(lambda: name in served.snapshot.registry.models, "the model arrived", 1)
    assert hidden()  # it has no price
    price = {"model": name, "prompt": "0", "completion": "0"}
    later = client.post("/admin/v1/prices", json=price | {"effective_from": "2999-01-01T00:00:00Z"})
    assert later.status_code == 201
    client.post("/admin/v1/prices", json=price)
    until(seen, "it has a price that holds", 1)
    client.patch(f"/admin/v1/replicas/{replica['id']}", json={"state": "draining"})
    (held,) = served.snapshot.registry.models[name].versions[0].replicas
    until(lambda: held.state == "draining", "it drains", 1)
    assert seen()
    client.patch(f"/admin/v1/replicas/{replica['id']}", json={"state": "off"})
    until(hidden, "its only replica is off", 1)
    client.patch(f"/admin/v1/replicas/{replica['id']}", json={"state": "ready"})
    until(seen, "the replica is back", 1)
    client.patch(f"/admin/v1/versions/{version['id']}", json={"weight": 0})
    until(hidden, "its only version gets no calls", 1)
    assert name in [row["name"] for row in client.get("/admin/v1/models").json()["data"]]


def test_the_official_client_lists_the_models(served: ServedApp, app_key: str) -> None:
    name = f"listed-{new_id()}"
    served.client.post("/admin/v1/models", json={"name": name, "engine_urls": ["http://127.0.0.1:9"]})
    served.client.post("/admin/v1/prices", json={"model": name, "prompt": "0", "completion": "0"})
    until(lambda: served.client.get(f"/v1/models/{name}").status_code == 200, "the model arrived", 1)
    with openai.OpenAI(api_key=app_key, base_url=f"{served.url}/v1") as client:
        assert name in [model.id for model in client.models.list()]
        assert client.models.retrieve(name).owned_by == "tollgate"
        with pytest.raises(openai.NotFoundError) as refusal:
            client.models.retrieve("nobody/knows")
    assert refusal.value.code == "model_not_found"
    assert refusal.value.request_id
