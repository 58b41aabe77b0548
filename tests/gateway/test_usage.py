import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.event_boundary import EventBoundary
from headrace.gateway.http.message import ResponseHead
from headrace.gateway.routes import UsageForm
from headrace.gateway.usage.usage import EventUsage, JsonUsage, Meter, NoUsage, Usage, usage_reader

USAGE = b'{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}'


def test_usage_of_a_json_body_is_found_across_its_parts() -> None:
    reader = JsonUsage()
    for part in (b'{"id":"x","usa', b'ge":' + USAGE, b"}"):
        reader.feed(part)

    usage = reader.result()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 4)


def test_a_null_usage_in_every_chunk_does_not_hide_the_last() -> None:
    reader = EventUsage()
    reader.feed(b'data: {"choices":[],"usage":null}\n\n')
    reader.feed(b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n")
    reader.feed(b'data: {"usage":null}\n\n')

    usage = reader.result()
    assert usage is not None
    assert usage.prompt_tokens == 7


def test_the_word_usage_in_a_text_is_no_usage() -> None:
    reader = EventUsage()
    reader.feed(b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n')

    assert reader.result() is None


def test_a_broken_body_says_nothing() -> None:
    reader = JsonUsage()
    reader.feed(b'{"usage":')

    assert reader.result() is None


@pytest.mark.parametrize("num_bytes", [1 << 16, (4 << 20) - 60, 5 << 20])
@pytest.mark.parametrize("size", [1 << 19, 16 << 20])
@pytest.mark.parametrize("rest", [b"}", b',"kv_transfer_params":{"a":"\xc3\xbc"}} \n'])
def test_usage_behind_a_long_answer_is_found(num_bytes: int, size: int, rest: bytes) -> None:
    reader = JsonUsage()
    body = b'{"choices":[{"text":"\\"usage\\":{' + b"x" * num_bytes + b'"}],"usage": ' + USAGE + rest
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size])
        reader.result()  # asked again and again, as headers and settlement do

    usage = reader.result()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 4)


@pytest.mark.parametrize(
    "rest",
    [b'"}]}', b'"}],"usage":null,"a":{"prompt_tokens":1}}', b'"}],"usage":{"prompt_tokens":7', b'"}],"usage":[]}'],
)
def test_a_long_answer_without_a_whole_usage_tells_none(rest: bytes) -> None:
    reader = JsonUsage()
    reader.feed(b'{"choices":[{"text":"\\"usage\\":{' + b"x" * (5 << 20) + rest)

    assert reader.result() is None


def test_errors_and_unreadable_bodies_are_not_searched() -> None:
    assert isinstance(usage_reader(ResponseHead(status=400, reason=b"", is_json=True)), NoUsage)
    assert isinstance(usage_reader(ResponseHead(status=200, reason=b"")), NoUsage)


def test_usage_without_details_has_no_cached_tokens() -> None:
    assert Usage(prompt_tokens=1).cached_tokens is None


RESPONSES_USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 9,
}
MESSAGE = {"type": "message", "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 0}}


def event(value: object, *, name: str | None = None) -> bytes:
    line = b"data: " + json.dumps(value).encode() + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


STREAMS: dict[UsageForm, bytes] = {
    "openai": event({"choices": [{"delta": {"content": "a"}}]})
    + event({"choices": [], "usage": json.loads(USAGE)})
    + b"data: [DONE]\n\n",
    "responses": event({"type": "response.created", "response": {"id": "r", "usage": None}}, name="response.created")
    + event({"type": "response.output_text.delta", "delta": '"usage"'}, name="response.output_text.delta")
    + event({"type": "response.completed", "response": {"usage": RESPONSES_USAGE}}, name="response.completed"),
    "anthropic": event({"type": "message_start", "message": MESSAGE}, name="message_start")
    + event({"type": "content_block_delta", "index": 0, "delta": {"text": "a"}}, name="content_block_delta")
    + event(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        name="message_delta",
    )
    + event({"type": "message_stop"}, name="message_stop"),
}
BODIES: dict[UsageForm, bytes] = {
    "openai": b'{"usage":' + USAGE + b"}",
    "responses": json.dumps({"object": "response", "usage": RESPONSES_USAGE}).encode(),
    "anthropic": json.dumps(MESSAGE | {"usage": MESSAGE["usage"] | {"output_tokens": 2}}).encode(),  # type: ignore[operator]
}


def told(usage: Usage | None) -> tuple[int, int | None, int | None] | None:
    return None if usage is None else (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


@pytest.mark.parametrize("form", STREAMS)
def test_a_body_tells_its_usage_in_the_words_of_its_route(form: UsageForm) -> None:
    reader = JsonUsage(form)
    reader.feed(BODIES[form])

    assert told(reader.result()) == (7, 2, 4)


@given(form=st.sampled_from(list(STREAMS)), cuts=st.lists(st.integers(1, 400), max_size=12), has_boundary=st.booleans())
def test_wherever_a_stream_is_cut_its_usage_is_the_same(form: UsageForm, cuts: list[int], has_boundary: bool) -> None:
    stream = STREAMS[form]
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    boundary, reader = EventBoundary(), EventUsage(form)
    for start, end in pairwise(places):
        piece = stream[start:end]
        reader.feed(boundary.push(piece) if has_boundary else piece)
    reader.feed(boundary.take_rest())

    assert told(reader.result()) == (7, 2, 4)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_lines_may_end_in_any_way(line_end: bytes) -> None:
    reader = EventUsage("anthropic")
    for byte in STREAMS["anthropic"].replace(b"\n", line_end):
        reader.feed(bytes([byte]))

    assert told(reader.result()) == (7, 2, 4)


def test_the_usage_of_an_event_longer_than_a_buffer_is_found() -> None:
    text = "x" * 300_000
    stream = event({"type": "response.completed", "response": {"output": text, "usage": RESPONSES_USAGE}})
    boundary, reader = EventBoundary(), EventUsage("responses")
    for start in range(0, len(stream), 10_000):
        reader.feed(boundary.push(stream[start : start + 10_000]))
    reader.feed(boundary.take_rest())

    assert told(reader.result()) == (7, 2, 4)


def test_a_line_without_end_is_not_kept() -> None:
    reader = EventUsage()
    for _ in range(80):
        reader.feed(b"data: " + b"x" * 65536)
    reader.feed(b'"usage"\n' + STREAMS["openai"])

    assert len(reader._line) == 0
    assert told(reader.result()) == (7, 2, 4)


def test_a_message_that_breaks_off_has_told_no_usage() -> None:
    meter = Meter("anthropic")
    meter.begin(ResponseHead(status=200, reason=b"", is_event_stream=True))
    meter.feed(STREAMS["anthropic"].partition(b"event: message_delta")[0])

    assert meter.usage() is None


def test_the_last_event_of_a_message_may_correct_the_first() -> None:
    reader = EventUsage("anthropic")
    reader.feed(event({"type": "message_start", "message": MESSAGE}))
    reader.feed(event({"type": "message_delta", "usage": {"input_tokens": 5, "output_tokens": 1}}))

    assert told(reader.result()) == (9, 1, 4)


def test_what_is_written_to_the_cache_belongs_to_the_prompt() -> None:
    reader = JsonUsage("anthropic")
    reader.feed(b'{"usage":{"input_tokens":1,"cache_creation_input_tokens":10,"output_tokens":2}}')

    assert told(reader.result()) == (11, 2, None)
