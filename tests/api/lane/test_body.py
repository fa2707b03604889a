"""Bodies are read strictly and edited without touching what no edit names."""

import itertools
import time
import tracemalloc

import orjson
import pytest

from api.errors import InvalidRequest
from api.lane.body import Edits, members, parse

BODY = rb' { "a" : 1 , "b":{"a":[1,2,{"b":"}{"}]}, "c":"x\"y,:", "d":null }'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"a":1',
        b'{"a":NaN}',
        b'{"a":1e999}',
        rb'{"a":"\ud83d"}',
        b'{"a":"\xff\xfe"}',
        b'{"a":1}{"a":1}',
        b'{"model":"x","model":"y"}',
        rb'{"model":"x","mod\u0065l":"y"}',
        b'{"user":"a","messages":[{"role":"user"}],"user":"b"}',
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(body)
    assert refused.value.status == 400


def test_a_word_may_be_key_and_value_and_stand_in_inner_objects() -> None:
    body = b'{"user":"u","messages":[{"role":"user","content":"say \\"model\\": x"}],"metadata":{"user":"v"}}'
    assert parse(body) == orjson.loads(body)


def test_any_mix_of_edits_changes_only_what_it_names() -> None:
    fields = parse(BODY)
    for count in range(5):
        for dropped in itertools.combinations("abcd", count):
            for put in [(), ("a",), ("e",), ("d", "z")]:
                edits = Edits(fields)
                for key in dropped:
                    edits.drop(key)
                for key in put:
                    edits.put(key, b'{"n":9}')
                wanted = {key: value for key, value in fields.items() if key not in dropped}
                wanted.update({key: {"n": 9} for key in put})
                assert orjson.loads(edits.apply(BODY)) == wanted


def test_without_edits_the_bytes_stay_as_they_are() -> None:
    assert Edits(parse(BODY)).apply(BODY) is BODY


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (b"", {"include_usage": True}),
        (b',"stream_options":null', {"include_usage": True}),
        (b',"stream_options":{}', {"include_usage": True}),
        (b',"stream_options":{"include_usage":false,"x":[1]}', {"include_usage": True, "x": [1]}),
        (
            b',"stream_options" : { "x" : {"include_usage":0} } ',
            {"include_usage": True, "x": {"include_usage": 0}},
        ),
    ],
)
def test_an_edit_inside_an_object_keeps_its_other_members(options: bytes, wanted: dict) -> None:
    body = b'{"model":"m"' + options + b',"z":1}'
    edits = Edits(parse(body))
    edits.put_inside("stream_options", "include_usage", b"true")
    assert orjson.loads(edits.apply(body)) == {"model": "m", "z": 1, "stream_options": wanted}


@pytest.mark.parametrize("levels", [300, 1000, 5000, 100_000])
def test_a_body_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(b'{"x":' + b"[" * levels + b"]" * levels + b"}")
    assert refused.value.code == "invalid_json"


LONG = 32 << 20
LONG_VALUES = {
    "a string": b'"' + b"x" * LONG + b'"',
    "escapes": b'"' + rb"\n" * (LONG // 2) + b'"',
    "numbers": b"[" + b"1, " * (LONG // 3) + b"1]",
    "objects": b"[" + (b'{"a": "' + b"x" * 90 + b'"}, ') * (LONG // 104) + b"{}]",
    "lists in lists": b"[" + b"[[]], " * 90_000 + b"[]]",
    "deep lists": b"[" + (b"[" * 200 + b"]" * 200 + b", ") * 400 + b"1]",
}


@pytest.mark.parametrize("what", LONG_VALUES)
def test_a_long_body_is_looked_at_closely_in_little_time_and_memory(what: str) -> None:
    body = b'{"model": "m", "x": ' + LONG_VALUES[what] + b' , "y": 1}'
    began = time.process_time()
    found = [member.key for member in members(body)]
    took = time.process_time() - began
    assert found == ["model", "x", "y"]
    assert took < 2.0  # a quarter of that, when nothing else uses the memory
    tracemalloc.start()
    for _ in members(body):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    with pytest.raises(InvalidRequest, match="stands twice"):
        parse(body[:-1] + b', "x": 1}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":[' + b"{}," * 1_000_000 + b"{}]}",
        b'{"x":[' + b"[[]]," * 110_000 + b"{}]}",
        b'{"x": [' + b'"", ' * 1_000_000 + b"{}]}",
        b"{" + b",".join(b'"k%d":1' % number for number in range(300)) + b"}",
    ],
    ids=["objects", "lists in lists", "strings", "fields"],
)
def test_a_body_of_more_parts_than_a_walk_can_pass_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(body)
    assert refused.value.code == "too_many_parts"
    assert refused.value.status == 400
