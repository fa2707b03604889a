"""Streams made whole for the cache and streamed again: nothing lost, nothing half-done kept."""

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from engine.answers import DONE, assemble, is_repeatable, replay
from tests.fakes import vllm_wire as wire

NOBODY_COUNTED = None


@dataclass
class Counts:
    prompt: int = 10
    cached: int = 4
    completion: int = 2
    reasoning: int = 1


def whole(stream: bytes, **more: Any) -> dict[str, Any]:
    answer = assemble(stream, NOBODY_COUNTED, **more)
    assert answer is not None
    parsed: dict[str, Any] = orjson.loads(answer)
    return parsed


def events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a replay, [DONE] checked and left out."""
    assert stream.endswith(b"\n\n" + DONE)
    parsed = [orjson.loads(part.removeprefix(b"data: ")) for part in stream.split(b"\n\n")[:-2]]
    assert all(parsed)
    return parsed


HELLO = wire.role() + wire.text("Hé") + wire.text("llo 🌍") + wire.finish()


def test_a_stream_adds_up_to_the_answer_that_was_not_streamed() -> None:
    answer = whole(HELLO + wire.usage(3, 2) + DONE)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == wire.MODEL
    assert answer["usage"] == wire.usage_of(3, 2)
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "Héllo 🌍"}
    assert "delta" not in choice


def test_done_may_be_missing_from_the_bytes_because_the_gateway_holds_it_back() -> None:
    assert whole(HELLO) == whole(HELLO + DONE)


def test_usage_that_the_caller_did_not_see_is_kept_all_the_same() -> None:
    answer = assemble(HELLO, Counts())
    assert answer is not None
    assert orjson.loads(answer)["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert "usage" not in whole(HELLO)


def test_what_the_engine_reported_itself_wins_over_counts() -> None:
    answer = assemble(HELLO + wire.usage(3, 2), Counts())
    assert answer is not None
    assert orjson.loads(answer)["usage"]["prompt_tokens"] == 3


def test_usage_in_every_chunk_ends_as_the_last_one() -> None:
    running = [
        wire.event({**wire.delta({"content": text}), "usage": wire.usage_of(3, count)})
        for count, text in enumerate(("a", "b", "c"), start=1)
    ]
    assert whole(b"".join(running) + wire.finish())["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("case", "stream", "choices"),
    [
        ("broke off without a finish_reason", wire.role() + wire.text("a"), 1),
        ("[DONE] without a finish_reason", wire.role() + wire.text("a") + DONE, 1),
        (
            "an error event in mid-stream",
            wire.role()
            + wire.text("a")
            + wire.event({"error": {"message": "out of memory"}})
            + wire.finish(),
            1,
        ),
        ("the caller left after a part", HELLO[: HELLO.index(wire.finish())], 1),
        (
            "one of two choices unfinished",
            wire.text("a", 0) + wire.text("b", 1) + wire.finish(index=0) + DONE,
            2,
        ),
        ("the second choice never came", HELLO + DONE, 2),
        ("aborted by the engine", wire.text("a") + wire.finish("abort") + DONE, 1),
        ("stopped by a filter", wire.text("a") + wire.finish("content_filter") + DONE, 1),
        ("nothing at all", b"", 1),
        ("only [DONE]", DONE, 1),
        ("usage only", wire.usage(3, 0) + DONE, 1),
        ("a cut event", HELLO[:-9], 1),
        ("another wire", b'event: message_stop\ndata: {"type":"message_stop"}\n\n', 1),
        ("not JSON", b"data: {nonsense}\n\n" + HELLO, 1),
    ],
)
def test_half_an_answer_is_never_kept(case: str, stream: bytes, choices: int) -> None:
    assert assemble(stream, NOBODY_COUNTED, choices=choices) is None, case


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "function_call"])
def test_answers_that_ended_by_themselves_or_at_the_cap_that_was_asked_for_are_kept(reason: str) -> None:
    answer = whole(wire.text("a") + wire.finish(reason))
    assert answer["choices"][0]["finish_reason"] == reason
    assert is_repeatable(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "x"}},
        {"object": "chat.completion", "choices": []},
        {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": None}]},
        {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "abort"}]},
        {"object": "chat.completion"},
        {"object": "list", "data": []},
        {},
    ],
)
def test_whole_answers_are_judged_by_the_same_rule(answer: dict[str, Any]) -> None:
    assert not is_repeatable(answer)


def test_a_whole_answer_with_fewer_choices_than_asked_for_is_not_kept() -> None:
    answer = {"object": "chat.completion", "choices": [{"finish_reason": "stop"}]}
    assert is_repeatable(answer, choices=1)
    assert not is_repeatable(answer, choices=2)


def test_tool_calls_are_put_together_by_their_index() -> None:
    def piece(index: int, **call: Any) -> bytes:
        return wire.event(wire.delta({"tool_calls": [{"index": index, **call}]}))

    stream = (
        wire.role()
        + piece(0, id="call_a", type="function", function={"name": "look", "arguments": ""})
        + piece(0, function={"arguments": '{"x":'})
        + piece(1, id="call_b", type="function", function={"name": "see", "arguments": '{"y'})
        + piece(0, function={"arguments": "1}"})
        + piece(1, id="call_b", type="function", function={"name": "see", "arguments": '":2}'})
        + wire.finish("tool_calls")
    )
    message = whole(stream)["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "see", "arguments": '{"y":2}'}},
    ]
    assert message["content"] is None


def test_choices_stay_apart_however_they_are_mixed() -> None:
    stream = wire.role(1) + wire.role(0) + wire.text("b", 1) + wire.text("a", 0) + wire.text("B", 1)
    stream += wire.text("A", 0) + wire.finish("length", 1) + wire.finish("stop", 0)
    choices = whole(stream, choices=2)["choices"]
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in choices] == [
        (0, "aA", "stop"),
        (1, "bB", "length"),
    ]


def test_refusal_reasoning_logprobs_and_unknown_fields_are_kept() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}

    first = wire.delta({"reasoning": "hm", "x_score": 1, "x_note": "u"}, system_fingerprint="fp_1")
    first["choices"][0]["logprobs"] = {"content": [token("a")], "refusal": None}
    second = wire.delta(
        {"reasoning": "m", "refusal": "no", "x_note": "v", "x_list": [1]}, x_top={"kept": True}
    )
    second["choices"][0] |= {"logprobs": {"content": [token("b")]}, "token_ids": [5], "x_choice": 2}
    third = wire.delta({"refusal": "pe", "x_list": [2]}, finish="stop")
    third["choices"][0] |= {"token_ids": [6], "stop_reason": "."}
    answer = whole(b"".join(wire.event(chunk) for chunk in (first, second, third)))
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant", "content": None, "reasoning": "hmm", "refusal": "nope", "x_score": 1,
        "x_note": "uv", "x_list": [1, 2],
    }  # fmt: skip
    assert choice["logprobs"] == {"content": [token("a"), token("b")], "refusal": None}
    assert (choice["token_ids"], choice["x_choice"], choice["stop_reason"]) == ([5, 6], 2, ".")
    assert (answer["system_fingerprint"], answer["x_top"]) == ("fp_1", {"kept": True})


def test_padding_against_eavesdroppers_is_not_kept() -> None:
    stream = wire.event(wire.delta({"content": "a"}, obfuscation="xyz")) + wire.finish()
    assert "obfuscation" not in whole(stream)


def test_text_completions_are_put_together_with_their_four_lists() -> None:
    def piece(text: str, finish: str | None = None) -> bytes:
        logprobs = {"tokens": [text], "token_logprobs": [-1.0], "top_logprobs": [None], "text_offset": [0]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return wire.event({"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]})

    answer = whole(piece("one ") + piece("two", "length"))
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice["text"] == "one two"
    assert choice["logprobs"]["tokens"] == ["one ", "two"]
    assert choice["logprobs"]["top_logprobs"] == [None, None]
    again = events(replay(orjson.dumps(answer), request_id="r", created=1, stream=True))
    assert {event["id"] for event in again} == {"cmpl-r"}
    assert "".join(event["choices"][0]["text"] for event in again) == "one two"
    assert [event["choices"][0]["finish_reason"] for event in again] == [None, "length"]


def test_a_replay_has_a_fresh_id_and_time_in_either_shape() -> None:
    kept = assemble(HELLO + wire.usage(3, 2), NOBODY_COUNTED)
    assert kept is not None
    answer = orjson.loads(replay(kept, request_id="0abc", created=1_800_000_000, stream=False))
    assert (answer["id"], answer["created"]) == ("chatcmpl-0abc", 1_800_000_000)
    assert {**answer, "id": wire.ID, "created": wire.CREATED} == orjson.loads(kept)
    for event in events(replay(kept, request_id="0abc", created=1_800_000_000, stream=True)):
        assert (event["id"], event["created"]) == ("chatcmpl-0abc", 1_800_000_000)
        assert event["object"] == "chat.completion.chunk"


def test_a_replayed_stream_speaks_as_an_engine_does() -> None:
    kept = assemble(HELLO + wire.usage(3, 2), NOBODY_COUNTED)
    assert kept is not None
    first, *middle, last = events(replay(kept, request_id="r", created=1, stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in middle) == "Héllo 🌍"
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert all("usage" not in event for event in (first, *middle, last))


def test_a_replay_shows_usage_only_to_those_who_asked_and_in_a_chunk_of_its_own() -> None:
    kept = assemble(HELLO + wire.usage(3, 2), NOBODY_COUNTED)
    assert kept is not None
    *before, last = events(replay(kept, request_id="r", created=1, stream=True, include_usage=True))
    assert all(event["usage"] is None and event["choices"] for event in before)
    assert last["choices"] == []
    assert last["usage"] == wire.usage_of(3, 2)


@pytest.mark.parametrize(
    "stream",
    [
        HELLO + wire.usage(3, 2),
        wire.role() + wire.finish("length") + wire.usage(3, 0),
        wire.role(0)
        + wire.role(1)
        + wire.text("b", 1)
        + wire.text("a")
        + wire.finish("stop", 1)
        + wire.finish(),
        wire.role()
        + wire.event(
            wire.delta(
                {
                    "content": "so: ",
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        },
                        {
                            "index": 1,
                            "id": "d",
                            "type": "function",
                            "function": {"name": "g", "arguments": "{}"},
                        },
                    ],
                }
            )
        )
        + wire.finish("tool_calls"),
        wire.event(wire.delta({"reasoning": "hm", "refusal": "no"}, x_top=1)) + wire.finish(),
    ],
)
def test_an_answer_replayed_and_put_together_again_is_the_same(stream: bytes) -> None:
    kept = whole(stream)
    again = replay(
        orjson.dumps(kept), request_id="r", created=kept["created"], stream=True, include_usage=True
    )
    twice = whole(again)
    if kept.get("usage") is None:
        twice.pop("usage", None)
        kept.pop("usage", None)
    assert {**twice, "id": kept["id"]} == kept


def test_the_official_clients_parser_reads_a_replay() -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    kept = assemble(HELLO + wire.usage(3, 2), NOBODY_COUNTED)
    assert kept is not None
    answer = ChatCompletion.model_validate_json(replay(kept, request_id="r", created=1, stream=False))
    assert answer.choices[0].message.content == "Héllo 🌍"
    for event in events(replay(kept, request_id="r", created=1, stream=True, include_usage=True)):
        ChatCompletionChunk.model_validate(event)
