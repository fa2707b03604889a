"""Reading a stream while it passes, at every possible cut."""

import orjson
import pytest

from api.lane.stream import ChunkMeter, StreamMeter
from api.lane.typed_stream import MessageMeter, ResponseMeter
from api.lane.usage import Usage


def chunk(delta: dict | None, finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return (
        b"data: "
        + orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": choices, **more})
        + b"\n\n"
    )


ROLE = chunk({"role": "assistant", "content": ""})
TEXT = chunk({"content": "你🌍é"})
STOP = chunk({}, "stop")
USAGE = chunk(None, usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
DONE = b"data: [DONE]\n\n"


def read(meter: StreamMeter, pieces: list[bytes]) -> bytes:
    return b"".join(meter.feed(piece) for piece in pieces)


@pytest.mark.parametrize("shows_usage", [False, True])
def test_every_cut_gives_the_same_bytes_and_the_same_usage(shows_usage: bool) -> None:
    stream = ROLE + TEXT + TEXT + STOP + USAGE + DONE
    wanted = ROLE + TEXT + TEXT + STOP + (USAGE if shows_usage else b"")
    cuts = [[stream[:i], stream[i:]] for i in range(len(stream) + 1)]
    for pieces in [*cuts, [stream[i : i + 1] for i in range(len(stream))]]:
        meter = ChunkMeter(1, shows_usage, False)
        assert read(meter, pieces) == wanted
        assert meter.is_whole()
        assert meter.usage == Usage(3, 0, 2, 0)
        assert meter.delivered.text() == "你🌍é你🌍é"


def test_a_stream_of_two_choices_is_whole_only_when_both_finished() -> None:
    meter = ChunkMeter(2, True, False)
    read(meter, [ROLE, TEXT, chunk({}, "stop", 0)])
    meter.feed(DONE)
    assert not meter.is_whole()
    meter = ChunkMeter(2, True, False)
    read(meter, [ROLE, TEXT, chunk({}, "stop", 0), chunk({}, "length", 1), USAGE, DONE])
    assert meter.is_whole()
    assert meter.usage == Usage(3, 0, 2, 0)


def test_done_without_a_finish_reason_is_not_whole() -> None:
    meter = ChunkMeter(1, True, False)
    read(meter, [ROLE, TEXT, DONE])
    assert meter.done
    assert not meter.is_whole()


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_output_that_the_engine_gave_up_is_a_failure(reason: str) -> None:
    meter = ChunkMeter(1, True, False)
    assert meter.feed(ROLE + TEXT + chunk({"content": ""}, reason) + USAGE + DONE) == ROLE + TEXT
    assert meter.failure is not None


def test_an_error_event_passes_what_came_before_it_and_nothing_after() -> None:
    meter = ChunkMeter(1, True, False)
    out = meter.feed(ROLE + TEXT + b'data: {"error":{"message":"worker died"}}\n\n' + TEXT)
    assert out == ROLE + TEXT
    assert meter.failure == "worker died"


def test_text_that_looks_like_the_marks_is_only_text() -> None:
    tricky = chunk({"content": 'x "finish_reason":null "usage":{"a":1} data: [DONE]\n\n'})
    meter = ChunkMeter(1, False, False)
    assert read(meter, [ROLE, tricky, tricky, STOP, USAGE, DONE]) == ROLE + tricky + tricky + STOP
    assert meter.is_whole()


def test_usage_that_only_the_gateway_asked_for_is_taken_out_of_each_chunk() -> None:
    meter = ChunkMeter(1, False, False)
    nulls = chunk({"content": "a"}, usage=None)
    merged = chunk({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3})
    out = read(meter, [ROLE, nulls, merged, DONE])
    assert b"usage" not in out
    assert [orjson.loads(event[6:])["choices"] for event in out.split(b"\n\n") if event]
    assert meter.usage == Usage(3, 0, 0, 0)


def test_running_usage_that_the_caller_asked_for_stays() -> None:
    running = chunk({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4})
    meter = ChunkMeter(1, True, False)
    assert read(meter, [ROLE, running]) == ROLE + running
    assert meter.usage == Usage(3, 0, 1, 0)


def test_comments_and_broken_events_pass_and_count_as_nothing() -> None:
    meter = ChunkMeter(1, True, False)
    odd = b": ping\n\n" + b"data: {broken\n\n" + b"data: \xff\xfe\n\n"
    assert read(meter, [ROLE, odd, TEXT, STOP, DONE]) == ROLE + odd + TEXT + STOP
    assert meter.is_whole()


def test_windows_line_ends_are_understood() -> None:
    stream = (ROLE + TEXT + STOP + DONE).replace(b"\n\n", b"\r\n\r\n")
    for i in range(len(stream)):
        meter = ChunkMeter(1, True, False)
        read(meter, [stream[:i], stream[i:]])
        assert meter.is_whole()


def test_created_that_moves_is_held_at_its_first_value() -> None:
    pieces = [
        chunk({"role": "assistant"}, created=5),
        chunk({"content": "a"}, created=6),
        chunk({}, "stop", created=17),
    ]
    out = read(ChunkMeter(1, True, True), pieces)
    assert {orjson.loads(event[6:])["created"] for event in out.split(b"\n\n") if event} == {5}


def test_a_long_stream_keeps_only_its_text() -> None:
    meter = ChunkMeter(1, True, False)
    read(meter, [ROLE])
    piece = chunk({"content": 'wo"rd '}, padding="x" * 200)
    for _ in range(1000):
        meter.feed(piece)
    assert sum(map(len, meter.delivered.pieces)) < 32_768
    assert meter.delivered.text() == 'wo"rd ' * 1000
    assert meter.delivered.whole() is None


def test_messages_of_anthropic_add_the_cached_input() -> None:
    def event(kind: str, **more: object) -> bytes:
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **more}) + b"\n\n"

    start = event(
        "message_start",
        message={"usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 0}},
    )
    delta = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"})
    stopping = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    stop = event("message_stop")
    stream = start + delta + stopping + stop
    for i in range(len(stream)):
        meter = MessageMeter()
        assert read(meter, [stream[:i], stream[i:]]) + meter.ending() == stream
        assert meter.is_whole()
        assert meter.usage == Usage(12, 7, 2, 0)
        assert meter.delivered.text() == "hi"


def test_responses_end_with_their_completed_event() -> None:
    usage = b'{"input_tokens":4,"output_tokens":3}'
    head = b"event: response.completed\ndata: "
    done = head + b'{"type":"response.completed","response":{"usage":' + usage + b"}}\n\n"
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
    meter = ResponseMeter()
    assert meter.feed(delta + done) == delta
    assert meter.is_whole()
    assert meter.ending() == done
    assert meter.usage == Usage(4, 0, 3, 0)
