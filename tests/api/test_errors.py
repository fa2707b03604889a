"""The shapes in which refusals are told."""

import json

import anthropic
import httpx2
import openai
import pytest

from api.errors import (
    ANTHROPIC_TYPES,
    BodyTooLarge,
    Conflict,
    DirectoryUnavailable,
    GatewayError,
    InternalError,
    InvalidKey,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    NotPermitted,
    Unavailable,
    anthropic_body,
    error_headers,
    openai_body,
    quoted,
)

ONE_OF_EACH = [
    InvalidRequest("Wrong.", "messages"),
    InvalidKey(),
    NotPermitted("Not this."),
    NotFound("Gone."),
    ModelNotFound("m"),
    MethodNotAllowed("PUT", "/v1/models"),
    Conflict("Taken.", "name"),
    BodyTooLarge(10),
    InternalError(),
    Unavailable("Away."),
    DirectoryUnavailable(),
    GatewayError(429, "insufficient_quota", "insufficient_quota", "Spent.", should_retry=False),
]


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_openais_shape_has_all_four_keys(error: GatewayError) -> None:
    body = json.loads(openai_body(error))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == str(error)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_anthropics_shape_has_type_error_and_request_id(error: GatewayError) -> None:
    body = json.loads(anthropic_body(error, "r-1"))
    assert body["type"] == "error"
    assert body["request_id"] == "r-1"
    assert body["error"]["message"] == str(error)
    assert body["error"]["type"] in {*ANTHROPIC_TYPES.values(), "api_error"}


@pytest.mark.parametrize("text", ["\ud83d", "\0", "naïve 🌍", '"quoted"\n'])
def test_any_text_of_a_caller_can_be_told_back(text: str) -> None:
    error = ModelNotFound(text)
    for body in (openai_body(error), anthropic_body(error, "r")):
        body.decode("ascii")
        assert json.loads(body)["error"]["message"] == str(error)


def test_a_callers_text_is_cut_and_free_of_control_characters() -> None:
    assert len(quoted("x" * 1000)) == 64
    assert quoted("a\r\nb\0") == "a��b�"


def test_an_unknown_an_expired_and_a_revoked_key_cannot_be_told_apart() -> None:
    assert openai_body(InvalidKey()) == openai_body(InvalidKey())
    assert InvalidKey().param is None


def test_what_cannot_get_better_by_waiting_says_so_and_gives_no_time() -> None:
    quota = GatewayError(429, "insufficient_quota", "insufficient_quota", "Spent.", should_retry=False)
    assert dict(error_headers(quota)) == {b"x-should-retry": b"false"}
    assert dict(error_headers(Unavailable("Away.", retry_after=0))) == {b"retry-after": b"1"}


def test_the_openai_client_reads_the_refusal() -> None:
    answer = httpx2.Response(
        404, content=openai_body(ModelNotFound("m")), headers={"content-type": "application/json"}
    )
    transport = httpx2.MockTransport(lambda request: answer)
    client = openai.OpenAI(
        api_key="k", base_url="http://gateway/v1", http_client=httpx2.Client(transport=transport)
    )
    with pytest.raises(openai.NotFoundError) as refusal:
        client.models.retrieve("m")
    assert refusal.value.code == "model_not_found"
    assert refusal.value.param == "model"


def test_the_anthropic_client_reads_the_refusal() -> None:
    answer = httpx2.Response(
        401, content=anthropic_body(InvalidKey(), "r-1"), headers={"content-type": "application/json"}
    )
    transport = httpx2.MockTransport(lambda request: answer)
    client = anthropic.Anthropic(
        api_key="k", base_url="http://gateway", http_client=httpx2.Client(transport=transport)
    )
    with pytest.raises(anthropic.AuthenticationError) as refusal:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert refusal.value.type == "authentication_error"
