"""/openapi.json and the page that shows it, and HEAD, which is GET without a body."""

import json
import re

import pytest

from tests.api.served_app import LANE_PATHS, ServedApp


def test_the_document_describes_the_lane_and_every_route(served: ServedApp) -> None:
    document = served.client.get("/openapi.json").json()
    for path in LANE_PATHS:
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert set(operation["responses"]) >= {"200", "400", "401", "404", "429", "503"}
        assert operation["requestBody"]["content"]["application/json"]["example"]["model"]
    for paths in document["paths"].values():
        for operation in paths.values():
            assert "422" not in operation["responses"]
    names = set(document["components"]["schemas"])
    text = json.dumps(document)
    for reference in text.split('"#/components/schemas/')[1:]:
        assert reference.partition('"')[0] in names
    assert "HTTPValidationError" not in text


def test_the_page_of_the_document_needs_nothing_from_elsewhere(served: ServedApp) -> None:
    page = served.client.get("/docs")
    assert page.status_code == 200
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) == 3
    for asset in assets:
        assert asset.startswith("/docs/assets/")
        answer = served.client.get(asset)
        assert answer.status_code == 200
        assert len(answer.content) > 1000
    assert "//" not in page.text.replace("window.location", "")
    assert served.client.get("/docs/assets/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/admin/v1/orgs", "/v1/nothing", "/openapi.json"])
def test_head_is_answered_as_get_is_without_the_body(served: ServedApp, path: str) -> None:
    got, headed = served.client.get(path), served.client.head(path)
    assert headed.status_code == got.status_code
    assert headed.content == b""
    for name in ("content-type", "content-length"):
        assert headed.headers[name] == got.headers[name]


def test_head_on_a_path_that_takes_only_post_is_a_405(served: ServedApp) -> None:
    refused = served.client.head("/v1/chat/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
