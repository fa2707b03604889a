"""Bodies: what is broken is refused in the wire's shape and costs nothing; what is odd passes unchanged."""

import json
from typing import Any

import pytest

from tests.caller import Caller, Reply, request
from tests.fakes import vllm_wire as wire
from tests.fakes.scripted_engine import ScriptedEngine
from tests.gateway import App, Gateway

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'
STREAMS = pytest.mark.parametrize("stream", [b"true", b"false"], ids=["stream", "whole"])


def body(inner: bytes, stream: bytes) -> bytes:
    return b'{"model":"scripted","stream":' + stream + b"," + inner + b"}"


def content(raw: bytes) -> bytes:
    return b'"messages":[{"role":"user","content":' + raw + b"}]"


def assert_openai_error(reply: Reply, status: int) -> dict[str, Any]:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    error: dict[str, Any] = json.loads(reply.body.decode("ascii"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error


BROKEN = {
    "lone surrogate": content(b'"\\ud83d"'),
    "lone low surrogate": content(b'"a\\udc00b"'),
    "lone surrogate where a text stands": content(b'["\\ud83d"]'),
    "lone surrogate in a key": MESSAGES + b',"x\\ud83d":1',
    "bytes that are no utf-8": content(b'"\xff\xfe"'),
    "utf-8 that is cut": content(b'"\xe4\xbd"'),
    "surrogate as utf-8": content(b'"\xed\xa0\xbd"'),
    "NaN": MESSAGES + b',"max_tokens":NaN',
    "Infinity": MESSAGES + b',"temperature":-Infinity',
    "a number beyond all": MESSAGES + b',"temperature":1e999',
    "trailing comma": MESSAGES + b",",
    "a key twice": MESSAGES + b',"max_tokens":1,"max_tokens":100000',
    "a key twice, once escaped": MESSAGES + b',"max_tokens":1,"max_t\\u006fkens":100000',
    "control character": content(b'"a\nb"'),
    "max_tokens as text": MESSAGES + b',"max_tokens":"5"',
    "max_tokens as a fraction": MESSAGES + b',"max_tokens":1.5',
    "max_tokens as true": MESSAGES + b',"max_tokens":true',
    "max_tokens beyond integers": MESSAGES + b',"max_tokens":100000000000000000000000',
    "max_tokens 0": MESSAGES + b',"max_tokens":0',
    "max_tokens -1": MESSAGES + b',"max_tokens":-1',
    "n 0": MESSAGES + b',"n":0',
    "n as text": MESSAGES + b',"n":"2"',
    "no messages": b'"temperature":0',
    "messages empty": b'"messages":[]',
    "messages no list": b'"messages":"hi"',
    "a message no object": b'"messages":["hi"]',
    "stream_options no object": MESSAGES + b',"stream_options":[true]',
    "include_usage no boolean": MESSAGES + b',"stream_options":{"include_usage":"yes"}',
    "user no text": MESSAGES + b',"user":7',
    "user with a NUL": MESSAGES + b',"user":"a\\u0000b"',
    "user too long": MESSAGES + b',"user":"' + b"u" * 65 + b'"',
    "a media address": content(b'[{"type":"image_url","image_url":{"url":"http://10.0.0.1/x"}}]'),
}


@STREAMS
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_body_is_400_reaches_no_engine_and_costs_nothing(
    gateway: Gateway, app: App, engine: ScriptedEngine, what: str, stream: bytes
) -> None:
    with Caller(gateway) as caller:
        assert_openai_error(caller.ask(app, body(BROKEN[what], stream)), 400)
        # The connection lives on: the refusal was whole.
        assert caller.ask(app, body(MESSAGES, b"false")).status == 200
    assert len(engine.requests()) == 1
    assert len(app.usage_rows(1)) == 1


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'"max_tokens":"5"', "max_tokens"),
        (b'"stream_options":7', "stream_options"),
        (b'"user":7', "user"),
        (b'"n":true', "n"),
    ],
)
def test_a_refusal_names_the_field(
    gateway: Gateway, app: App, engine: ScriptedEngine, raw: bytes, param: str
) -> None:
    with Caller(gateway) as caller:
        error = assert_openai_error(caller.ask(app, body(MESSAGES + b"," + raw, b"false")), 400)
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"text"', b"\x00", b'{"model":"scripted"}{}', b"[" * 100_000]
)
def test_a_body_that_is_no_object_is_400(
    gateway: Gateway, app: App, engine: ScriptedEngine, raw: bytes
) -> None:
    with Caller(gateway) as caller:
        assert_openai_error(caller.ask(app, raw), 400)
    assert engine.requests() == []


@pytest.mark.parametrize("model", [b'"nobody"', b'"a\\u0000b"', b'"' + b"m" * 5000 + b'"'])
def test_an_unknown_model_is_404_and_named_shortly(
    gateway: Gateway, app: App, engine: ScriptedEngine, model: bytes
) -> None:
    with Caller(gateway) as caller:
        error = assert_openai_error(caller.ask(app, b'{"model":' + model + b"," + MESSAGES + b"}"), 404)
    assert error["code"] == "model_not_found"
    assert len(error["message"]) < 300
    assert engine.requests() == []
    app.usage_rows(0)


@STREAMS
def test_a_nul_in_a_prompt_is_served(
    gateway: Gateway, app: App, engine: ScriptedEngine, stream: bytes
) -> None:
    with Caller(gateway) as caller:
        assert caller.ask(app, body(content(b'"a\\u0000b"'), stream)).status == 200
    assert engine.last().json()["messages"] == [{"role": "user", "content": "a\x00b"}]
    (row,) = app.usage_rows(1)
    assert row["outcome"] == "completed"


# Legal but unusual: the engine gets what was sent

TOOL_CALL = (
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",'
    b'"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"7"}'
)
UNUSUAL = {
    "null content beside tool calls": b'"messages":[{"role":"user","content":"q"},' + TOOL_CALL + b"]",
    "empty content": b'"messages":[{"role":"assistant","content":""},{"role":"user","content":"q"}]',
    "content in parts": content(b'[{"type":"text","text":"a"},{"type":"text","text":"b"}]'),
    "zeros and false": MESSAGES
    + b',"temperature":0,"seed":0,"logprobs":false,"presence_penalty":0.0,"top_p":1.0,"stop":null',
    "unknown fields": MESSAGES + b',"x_new":{"a":[1,null]},"messages2":[{"x":{}}],"Model":"other"',
    "numbers beyond doubles": MESSAGES + b',"seed":12345678901234567890,"x":1e-400,"y":1.0E+2',
    "unpaired escapes kept": content(b'"\\u00e9\\ud83d\\ude00\\/\\"\\\\"'),
    "white space everywhere": b' \r\n\t"messages" : [ { "role" : "user" , "content" : "hi" } ] \n',
    "no tools": MESSAGES + b',"tools":[]',
    "two answers": MESSAGES + b',"n":2',
    "null where a number may stand": MESSAGES + b',"temperature":null,"n":null,"user":null',
    "field names inside texts": content(b'"\\"model\\":\\"x\\",\\"stream\\":true,\\"max_tokens\\":5"'),
    "a user, and metadata": MESSAGES + b',"user":"u-1","metadata":{"user":"other","model":"m"}',
}


@STREAMS
@pytest.mark.parametrize("what", UNUSUAL)
def test_an_unusual_body_reaches_the_engine_with_the_values_it_was_sent_with(
    gateway: Gateway, app: App, engine: ScriptedEngine, what: str, stream: bytes
) -> None:
    sent = body(UNUSUAL[what], stream)
    with Caller(gateway) as caller:
        assert caller.ask(app, sent).status == 200
    (received,) = engine.requests()
    got = json.loads(received.body, parse_float=str, parse_int=str)
    # The documented edits: the output cap, and usage in streams.
    assert int(got.pop("max_tokens")) == 256
    if stream == b"true":
        assert got.pop("stream_options") == {"include_usage": True}
    assert got == json.loads(sent, parse_float=str, parse_int=str)
    assert len(app.usage_rows(1)) == 1


@pytest.mark.parametrize("given", [1, 100, 256])
def test_a_callers_own_limit_within_the_models_is_left_as_it_is(
    gateway: Gateway, app: App, engine: ScriptedEngine, given: int
) -> None:
    sent = body(MESSAGES + b',"max_tokens": %d' % given, b"false")
    with Caller(gateway) as caller:
        caller.ask(app, sent)
    assert engine.last().body == sent


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_above_the_models_is_lowered_and_said(
    gateway: Gateway, app: App, engine: ScriptedEngine, name: str
) -> None:
    sent = body(MESSAGES + b',"%b":100000' % name.encode(), b"false")
    with Caller(gateway) as caller:
        reply = caller.ask(app, sent)
    assert engine.last().body == sent.replace(b"100000", b"256")
    assert reply.headers["x-tollgate-max-tokens"] == "256"


def test_both_names_of_the_limit_are_held_to_the_lower(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    sent = body(MESSAGES + b',"max_tokens":5,"max_completion_tokens":300', b"false")
    with Caller(gateway) as caller:
        caller.ask(app, sent)
    got = engine.last().json()
    assert (got["max_tokens"], got["max_completion_tokens"]) == (5, 5)


def test_stream_options_without_a_stream_pass_as_they_are(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    refusal = wire.error_body("stream_options can only be set when stream is true")
    engine.script(wire.reply(refusal, 400))
    sent = body(MESSAGES + b',"max_tokens":5,"stream_options":{"include_usage":true}', b"false")
    with Caller(gateway) as caller:
        error = assert_openai_error(caller.ask(app, sent), 400)
    assert engine.last().body == sent
    assert error["message"] == refusal["error"]["message"]
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["status"], row["charge"]) == ("engine_refused", 400, 0)


@pytest.mark.parametrize("name", ["cache_salt", "priority"])
def test_fields_that_reach_into_the_engines_scheduling_are_taken_out(
    gateway: Gateway, app: App, engine: ScriptedEngine, name: str
) -> None:
    with Caller(gateway) as caller:
        assert caller.ask(app, body(MESSAGES + b',"%b":-5' % name.encode(), b"false")).status == 200
    assert name not in engine.last().json()


# An engine's refusals stay refusals


@STREAMS
@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_engines_refusal_is_passed_on_once_and_costs_nothing(
    gateway: Gateway, app: App, engine: ScriptedEngine, status: int, stream: bytes
) -> None:
    said = wire.error_body("This model's maximum context length is 2048 tokens.", status)
    engine.script(wire.reply(said, status))
    with Caller(gateway) as caller:
        error = assert_openai_error(caller.ask(app, body(MESSAGES, stream)), status)
    assert error["message"] == said["error"]["message"]
    assert error["type"] == "invalid_request_error"
    assert len(engine.requests()) == 1
    (row,) = app.usage_rows(1)
    assert (row["outcome"], row["status"], row["charge"]) == ("engine_refused", status, 0)
    assert app.transfers() == []


@pytest.mark.parametrize("said", [b"Bad Request", b"", b'{"detail":"no"}', b'{"error":"plain"}', b"\xff\xfe"])
def test_a_refusal_in_any_shape_becomes_the_wires_shape(
    gateway: Gateway, app: App, engine: ScriptedEngine, said: bytes
) -> None:
    engine.script(wire.reply(said, 400, content_type="text/plain"))
    with Caller(gateway) as caller:
        error = assert_openai_error(caller.ask(app, body(MESSAGES, b"false")), 400)
    assert error["message"]


# Size


def test_a_body_of_megabytes_reaches_the_engine_whole(
    gateway: Gateway, app: App, engine: ScriptedEngine
) -> None:
    sent = body(content(b'"' + b"word " * 400_000 + b'"') + b',"max_tokens":1', b"false")
    with Caller(gateway) as caller:
        assert caller.ask(app, sent).status == 200
        assert caller.ask(app, sent, chunked=(1, 70_000)).status == 200
    assert [received.body == sent for received in engine.requests()] == [True, True]


@pytest.mark.parametrize("chunked", [None, (1 << 20,) * 40], ids=["length", "chunked"])
def test_a_body_beyond_the_limit_is_413_before_it_is_read(
    gateway: Gateway, app: App, engine: ScriptedEngine, chunked: tuple[int, ...] | None
) -> None:
    sent = request(app, b" " * (40 << 20), chunked=chunked)
    with Caller(gateway) as caller:
        try:
            caller.send(sent)
        except (BrokenPipeError, ConnectionResetError):
            pytest.fail("the refusal must reach a caller that is still sending")
        assert_openai_error(caller.read_reply(), 413)
    assert engine.requests() == []
    app.usage_rows(0)
