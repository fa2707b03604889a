"""The admin API and the models list over HTTP, by the rules for errors that every route keeps."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from api.access import service
from ledger.ids import new_id
from tests.api.own_postgres import own_postgres
from tests.api.served_app import (
    LANE_PATHS,
    ServedApp,
    error_of,
    in_database,
    served_app,
    served_app_with_admin,
)
from tests.waiting import until

ADMIN_PATHS = [
    "/admin/v1/orgs",
    "/admin/v1/apps",
    "/admin/v1/keys",
    "/admin/v1/models",
    "/admin/v1/prices",
]


def test_organisation_app_and_key_are_created_listed_and_revoked(served: ServedApp) -> None:
    client = served.client
    name = f"org-{new_id()}"
    organisation = client.post("/admin/v1/orgs", json={"name": name})
    assert organisation.status_code == 201
    app = client.post("/admin/v1/apps", json={"organization": name, "name": "web"})
    assert app.status_code == 201
    made = client.post("/admin/v1/keys", json={"app": f"{name}/web", "name": "laptop"})
    assert made.status_code == 201
    key = made.json()
    assert key["key"].startswith(key["prefix"])
    assert key["scopes"] == ["chat"]

    listed = client.get("/admin/v1/keys", params={"app": f"{name}/web"}).json()
    assert [row["id"] for row in listed["data"]] == [key["id"]]
    assert key["key"] not in json.dumps(listed)
    assert client.get(f"/admin/v1/apps/{name}/web").json()["id"] == app.json()["id"]
    assert client.get("/admin/v1/apps", params={"organization": name}).json()["has_more"] is False

    own = {"authorization": f"Bearer {key['key']}"}
    until(lambda: client.get("/v1/models", headers=own).status_code == 200, "the key works", 1)
    assert client.post(f"/admin/v1/keys/{key['prefix']}/revoke").json()["revoked_at"] is not None
    until(lambda: client.get("/v1/models", headers=own).status_code == 401, "the key is stopped", 1)
    assert client.post(f"/admin/v1/apps/{name}/web/revoke").json()["revoked_at"] is not None
    assert client.post(f"/admin/v1/orgs/{name}/revoke").json()["revoked_at"] is not None
    again = client.post("/admin/v1/orgs", json={"name": name})
    assert again.status_code == 409
    assert error_of(again)["param"] == "name"


def test_limits_and_budgets_are_read_and_replaced_exactly(served: ServedApp, app_key: str) -> None:
    client = served.client
    access = served.snapshot.directory.find(app_key.encode())
    assert access is not None
    assert access.app is not None
    at = f"/admin/v1/apps/{access.app.id}"
    limits = [{"subject": "end_user", "what": "requests", "window": "minute", "value": 5}]
    assert client.put(f"{at}/limits", json={"limits": limits}).json()["data"] == limits
    assert client.get(f"{at}/limits").json()["data"] == limits
    budget = {"subject": "app", "period": "day", "amount": "0.000000000001", "currency": "EUR", "hard": False}
    assert client.put(f"{at}/budgets", json={"budgets": [budget]}).json()["data"] == [budget]
    assert client.get(f"{at}/budgets").json()["data"] == [budget]
    for amount in (1.5, "1.0000000000001", "-1", "NaN", "1e40", "x", None):
        refused = client.put(f"{at}/budgets", json={"budgets": [budget | {"amount": amount}]})
        assert refused.status_code == 400
        assert error_of(refused)["param"] == "budgets.0.amount"
    twice = client.put(f"{at}/limits", json={"limits": limits * 2})
    assert (twice.status_code, error_of(twice)["param"]) == (400, "limits")
    odd = client.put(f"{at}/limits", json={"limits": [limits[0] | {"what": "concurrency"}]})
    assert (odd.status_code, error_of(odd)["param"]) == (400, "limits")
    assert client.get(f"{at}/budgets").json()["data"] == [budget]


def test_a_model_its_versions_and_replicas_are_managed(served: ServedApp) -> None:
    client = served.client
    name = f"lab/model-{new_id()}"
    model = client.post(
        "/admin/v1/models",
        json={"name": name, "engine_urls": ["http://127.0.0.1:9/v1"], "kind": "light", "slots": 2},
    )
    assert model.status_code == 201
    assert model.json()["endpoints"] == ["chat/completions", "completions", "responses", "messages"]
    double = client.post("/admin/v1/models", json={"name": name, "engine_urls": ["http://127.0.0.1:9"]})
    assert (double.status_code, error_of(double)["code"]) == (409, "already_exists")
    assert name in [row["name"] for row in client.get("/admin/v1/models").json()["data"]]

    version = client.post("/admin/v1/versions", json={"model": name, "name": "v2", "weight": 5}).json()
    changed = client.patch(f"/admin/v1/versions/{version['id']}", json={"weight": 0})
    assert changed.json()["weight"] == 0
    replica = client.post(
        "/admin/v1/replicas", json={"version": version["id"], "url": "http://127.0.0.1:10"}
    ).json()
    assert replica["engine_model"] == name
    drained = client.patch(f"/admin/v1/replicas/{replica['id']}", json={"state": "draining"})
    assert drained.json()["state"] == "draining"
    until(lambda: served.snapshot.registry.models[name].versions[1].replicas, "the replica arrived", 1)
    assert client.delete(f"/admin/v1/replicas/{replica['id']}").status_code == 204
    assert client.delete(f"/admin/v1/versions/{version['id']}").status_code == 204
    assert len(client.get(f"/admin/v1/models/{name}").json()["versions"]) == 1
    assert client.delete(f"/admin/v1/models/{name}").status_code == 204
    gone = client.delete(f"/admin/v1/models/{name}")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")
    until(lambda: name not in served.snapshot.registry.models, "callers no longer see it", 1)


def test_an_engines_address_with_a_password_is_refused_and_not_repeated(served: ServedApp) -> None:
    refused = served.client.post(
        "/admin/v1/models", json={"name": "m", "engine_urls": ["http://user:MARKER@host:1"]}
    )
    assert (refused.status_code, error_of(refused)["param"]) == (400, "engine_urls")
    assert "MARKER" not in refused.text


def test_a_price_is_set_and_listed_exactly(served: ServedApp) -> None:
    model = f"priced-{new_id()}"
    price = {"model": model, "prompt": "0.0000015", "completion": "0.0000000375", "before_model": True}
    made = served.client.post("/admin/v1/prices", json=price)
    assert made.status_code == 201
    (listed,) = served.client.get("/admin/v1/prices", params={"model": model}).json()["data"]
    assert listed == made.json()
    assert {name: listed[name] for name in ("model", "prompt", "completion")} == {
        name: price[name] for name in ("model", "prompt", "completion")
    }
    same = served.client.post("/admin/v1/prices", json=price | {"effective_from": listed["effective_from"]})
    assert (same.status_code, error_of(same)["code"]) == (409, "price_exists")
    for amount in ("x", "-1", "0.0000000000001", "1e30", 0.5):
        refused = served.client.post("/admin/v1/prices", json=price | {"prompt": amount})
        assert refused.status_code == 400
        error_of(refused)


def test_a_price_for_a_model_that_is_not_there_is_refused_unless_it_is_to_come(
    served: ServedApp,
) -> None:
    client = served.client
    name = f"there-{new_id()}"
    client.post("/admin/v1/models", json={"name": name, "engine_urls": ["http://127.0.0.1:9"]})
    price = {"model": name[:-1], "prompt": "1", "completion": "1"}
    refused = client.post("/admin/v1/prices", json=price)
    assert refused.status_code == 404
    error = error_of(refused)
    assert (error["param"], error["code"]) == ("model", "not_found")
    assert "before_model" in error["message"]
    assert client.get("/admin/v1/prices", params={"model": name[:-1]}).json()["data"] == []
    assert client.post("/admin/v1/prices", json=price | {"model": name}).status_code == 201
    assert client.post("/admin/v1/prices", json=price | {"before_model": True}).status_code == 201


@pytest.mark.parametrize("path", [*ADMIN_PATHS, "/v1/models", "/v1/models/x"])
def test_missing_unknown_expired_and_revoked_keys_get_the_same_401(served: ServedApp, path: str) -> None:
    async def make(connection: asyncpg.Connection) -> list[str]:
        revoked = await service.create_key(connection, app=None, name="revoked")
        await service.revoke_key(connection, revoked.row.id)
        expired = await service.create_key(connection, app=None, name="expired")
        await connection.execute(
            "UPDATE api_keys SET expires_at = now() WHERE id = $1::text::uuid", expired.row.id
        )
        return [revoked.key, expired.key]

    keys = in_database(served.database_url, make)
    half = served.admin_key[:20]
    bodies = set()
    with httpx2.Client(base_url=served.url) as client:
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Basic dXNlcjpwYXNz"},
            *({"authorization": f"Bearer {key}"} for key in ("tg-unknown", half, *keys)),
            *({"x-api-key": key} for key in ("tg-unknown", half, *keys)),
        ):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            bodies.add(answer.content)
        asked_in_the_address = client.get(path, params={"api_key": served.admin_key, "key": served.admin_key})
        assert asked_in_the_address.status_code == 401
        bodies.add(asked_in_the_address.content)
    assert len(bodies) == 1


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_an_apps_key_opens_no_admin_route(served: ServedApp, app_key: str, path: str) -> None:
    refused = served.client.get(path, headers={"authorization": f"Bearer {app_key}"})
    assert (refused.status_code, error_of(refused)["type"]) == (403, "permission_error")


def test_a_key_is_taken_as_x_api_key_too(served: ServedApp, app_key: str) -> None:
    with httpx2.Client(base_url=served.url) as client:
        assert client.get("/v1/models", headers={"x-api-key": app_key}).status_code == 200
        assert client.get("/admin/v1/orgs", headers={"x-api-key": served.admin_key}).status_code == 200


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=501", "after=x", "after=%00", "organization=%00"]
)
def test_a_query_that_cannot_be_is_a_refusal(served: ServedApp, query: str) -> None:
    answer = served.client.get(f"/admin/v1/apps?{query}")
    assert answer.status_code in (400, 404)
    error_of(answer)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/nothing", "/admin/v1/nothing", "/v1/models/", "/%00", "/%ff", "/healthz/", "/redoc"],
)
def test_an_unknown_path_is_a_404_in_openais_shape(served: ServedApp, path: str) -> None:
    answer = served.client.get(path)
    assert answer.status_code == 404
    error_of(answer)


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/messages/", "/v1/messages/batches"])
def test_below_messages_an_unknown_path_is_a_404_in_anthropics_shape(served: ServedApp, path: str) -> None:
    answer = served.client.post(path, json={})
    assert answer.status_code == 404
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", LANE_PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_the_lanes_paths_take_nothing_but_post(served: ServedApp, path: str, method: str) -> None:
    answer = served.client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    if path == "/v1/messages":
        assert answer.json()["type"] == "error"
    else:
        assert error_of(answer)["code"] == "method_not_allowed"


def test_every_answer_has_an_id_of_its_own(served: ServedApp) -> None:
    ids = [
        served.client.request(method, path).headers["x-request-id"]
        for method, path in [
            ("GET", "/healthz"),
            ("GET", "/nothing"),
            ("GET", "/v1/messages"),
            ("GET", "/v1/models"),
            ("POST", "/admin/v1/orgs"),
            ("GET", "/openapi.json"),
        ]
    ]
    assert len(set(ids)) == len(ids)


def test_a_fault_of_ours_is_a_500_that_tells_nothing(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(connection: object, name: str) -> None:
        raise RuntimeError("MARKER digest \\x00 at /srv/api/secret.py in table api_keys")

    monkeypatch.setattr(service, "create_organisation", broken)
    with caplog.at_level(logging.DEBUG), served_app_with_admin(database) as served:
        answer = served.client.post("/admin/v1/orgs", json={"name": "x"})
        assert answer.status_code == 500
        error = error_of(answer)
        assert error["code"] == "internal_error"
        assert served.client.get("/healthz").status_code == 200
    for word in ("MARKER", "api_keys", "Traceback", "secret.py"):
        assert word not in answer.text
    assert "MARKER" not in caplog.text
    assert "RuntimeError at" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


def test_no_key_is_left_in_the_log_at_any_level(
    database: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), served_app_with_admin(database) as served:
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # the client's own lines are not ours
        logging.getLogger("httpcore2").setLevel(logging.WARNING)
        key = served.admin_key
        client = served.client
        client.get(f"/v1/models/{key}")
        client.get(f"/{key}?api_key={key}")
        client.get("/v1/models", params={"key": key})
        client.post("/admin/v1/orgs", json={"name": key, key: key})
        client.post("/admin/v1/keys", json={"app": key, "name": "x"})
        made = client.post("/admin/v1/keys", json={"name": "another"}).json()["key"]
        client.get("/v1/models", headers={"authorization": f"Bearer {made}x"})
        client.post(f"/admin/v1/keys/{key}/revoke")
    out, err = capfd.readouterr()
    logged = caplog.text + out + err
    assert f"GET /v1/models/{key[:8]}… 404" in logged
    for secret in (key[8:], made[8:]):
        assert secret not in logged


def test_postgres_away_is_a_503_and_never_a_401(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("own")
    with own_postgres(folder) as own, served_app_with_admin(own.url) as served:
        client = served.client
        assert client.get("/admin/v1/orgs").status_code == 200
        assert client.get("/readyz").json() == {
            "status": "ready",
            "checks": {"snapshot": True, "postgres": True},
        }
        own.kill()
        until(lambda: not served.snapshot.connected, "it is cut off")
        known = client.get("/v1/models")
        assert known.status_code == 200
        unknown = client.get("/v1/models", headers={"authorization": "Bearer tg-unknown"})
        database = client.get("/admin/v1/orgs")
        for refused in (unknown, database):
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert error_of(refused)["type"] == "service_unavailable_error"
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        own.start()
        until(lambda: client.get("/admin/v1/orgs").status_code == 200, "admin routes work again", 5)
        until(lambda: served.snapshot.connected, "keys can be checked again", 5)
        unknown = client.get("/v1/models", headers={"authorization": "Bearer tg-unknown"})
        assert unknown.status_code == 401


def test_a_process_that_has_loaded_nothing_is_alive_but_not_ready() -> None:
    with served_app("postgresql://u:p@127.0.0.1:1/none", wait_seconds=0.1) as served:
        assert served.client.get("/healthz").json() == {"status": "ok"}
        ready = served.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")
        refused = served.client.get("/v1/models", headers={"authorization": "Bearer tg-any"})
        assert refused.status_code == 503


def test_what_else_is_not_fine_makes_the_process_not_ready(database: str) -> None:
    state: dict[str, Any] = {"journal": True}
    with served_app(database, health=lambda: state) as served:
        assert served.client.get("/readyz").json()["checks"]["journal"] is True
        state["journal"] = False
        ready = served.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")


def test_a_caller_that_leaves_half_way_harms_nobody(served: ServedApp) -> None:
    head = (
        f"POST /admin/v1/orgs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.admin_key}\r\n"
        "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as sock:
            sock.sendall(head.encode())
    assert served.client.get("/healthz").status_code == 200


def test_a_post_that_misses_the_lane_says_so(served: ServedApp) -> None:
    answer = served.client.post("/v1/chat/completions", json={})
    assert (answer.status_code, error_of(answer)["code"]) == (503, "lane_missing")


def test_the_databases_url_never_appears(served: ServedApp) -> None:
    assert in_database(served.database_url, lambda connection: connection.fetchval("SELECT 1")) == 1
    password = served.database_url.partition("://")[2].partition(":")[2].partition("@")[0]
    for path in ("/readyz", "/openapi.json", "/nothing"):
        assert password not in served.client.get(path).text
