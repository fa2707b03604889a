"""Bodies of the admin API: read strictly, refused in the wire's shape, the field named as the body has it."""

from collections.abc import Iterator
from typing import Any

import pytest

from ledger.ids import new_id
from tests.api.served_app import ServedApp, error_of


@pytest.mark.parametrize(
    "body",
    [
        rb'{"name":"\ud83d"}',
        rb'{"name":["\ud83d"]}',
        b'{"name":"\xff\xfe"}',
        b'{"name":NaN}',
        b'{"name":1e999}',
        rb'{"name":"a\u0000"}',
        b'{"name":null}',
        b'{"name":{"a":1}}',
        rb'{"\ud83d":1,"name":"x"}',
        b'{"name":"x","extra":1}',
        b'{"name":"x"',
        b"[]",
        b'"x"',
        b"null",
        b"",
        b"[" * 5000,
    ],
)
def test_a_body_that_cannot_be_is_a_400_in_the_wires_shape(served: ServedApp, body: bytes) -> None:
    for path in ("orgs", "apps", "keys", "models", "versions", "replicas", "prices"):
        answer = served.client.post(
            f"/admin/v1/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, (path, answer.text)
        error_of(answer)


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json; charset=utf-16", 'x/y; z="'])
def test_a_body_of_another_kind_is_a_400_or_read_as_json(served: ServedApp, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = served.client.post("/admin/v1/orgs", content=b'{"name":"a b"}', headers=headers)
    assert answer.status_code == 400
    error_of(answer)


def test_a_body_beyond_the_limit_is_a_413_whether_its_length_is_told_or_not(served: ServedApp) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 15)
        yield b'{"name":"late"}'

    headers = {"content-type": "application/json"}
    for content in (b" " * ((1 << 20) + 1), pieces()):
        answer = served.client.post("/admin/v1/orgs", content=content, headers=headers)
        assert answer.status_code == 413
        assert error_of(answer)["code"] == "request_too_large"
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "fields",
    [
        {"slots": True},
        {"slots": "5"},
        {"slots": 5.0},
        {"weight": False},
        {"context_length": "2048"},
        {"default_max_output": "64"},
        {"name": 5},
        {"engine_urls": {"0": "http://127.0.0.1:9"}},
    ],
)
def test_no_value_of_a_body_is_taken_for_another(served: ServedApp, fields: dict[str, Any]) -> None:
    whole = {"name": f"m-{new_id()}", "engine_urls": ["http://127.0.0.1:9"]}
    refused = served.client.post("/admin/v1/models", json=whole | fields)
    assert (refused.status_code, error_of(refused)["param"]) == (400, next(iter(fields)))


def test_limits_budgets_and_times_are_taken_as_what_they_are(served: ServedApp, app_key: str) -> None:
    client = served.client
    access = served.snapshot.directory.find(app_key.encode())
    assert access is not None
    assert access.app is not None
    at = f"/admin/v1/apps/{access.app.id}"
    limit = {"what": "requests", "window": "minute"}
    for value in (True, "5", 5.5, None):
        refused = client.put(f"{at}/limits", json={"limits": [limit | {"value": value}]})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "limits.0.value")
    budget = {"period": "day", "amount": "1"}
    for bad in ({"hard": 1}, {"hard": "yes"}, {"amount": True}):
        assert client.put(f"{at}/budgets", json={"budgets": [budget | bad]}).status_code == 400
    assert client.put(f"{at}/budgets", json={"budgets": [budget | {"amount": 1}]}).status_code == 200
    for time in (4102444800, "4102444800", "2999-01-01", "2999-01-01T00:00:00", True):
        refused = client.post("/admin/v1/keys", json={"name": "x", "expires_at": time})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "expires_at")
    good = client.post("/admin/v1/keys", json={"name": "x", "expires_at": "2999-01-01T00:00:00+02:00"})
    assert good.json()["expires_at"] == "2998-12-31T22:00:00Z"


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"o3","name":"o4"}',
        rb'{"name":"o3","n\u0061me":"o4"}',
        b'{"limits":[{"what":"requests","window":"minute","value":5,"value":6}]}',
    ],
)
def test_a_key_that_stands_twice_in_a_body_is_refused_at_any_depth(served: ServedApp, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    for method, path in (("POST", "orgs"), ("PUT", "apps/x/limits")):
        refused = served.client.request(method, f"/admin/v1/{path}", content=body, headers=headers)
        assert (refused.status_code, error_of(refused)["code"]) == (400, "duplicate_key")


def test_a_refusal_names_the_field_as_the_body_has_it(served: ServedApp) -> None:
    client = served.client
    gone = client.post("/admin/v1/apps", json={"organization": f"o-{new_id()}", "name": "x"})
    assert (gone.status_code, error_of(gone)["param"]) == (404, "organization")
    model = {"name": "m", "engine_urls": ["http://127.0.0.1:9"]}
    for wrong, param in (
        ({"engine_urls": ["ftp://x"]}, "engine_urls"),
        ({"version": "a b"}, "version"),
        ({"weight": -1}, "weight"),
        ({"name": "a b"}, "name"),
    ):
        refused = client.post("/admin/v1/models", json=model | wrong)
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)
