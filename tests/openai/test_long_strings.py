"""Long strings taken out of a JSON text while it arrives, and put back when it is decoded."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError
from headrace.openai.decode import RequestDecoder, no_json
from headrace.openai.long_strings import JsonBody, LongStringReader
from headrace.openai.schema.chat import ChatCompletionRequest

MARKER = "nobody knows this"

strings = st.text(alphabet='ab "\\/\n\té中😀{[,:', max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)
cuts = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def pieces(text: bytes, sizes: list[int]) -> list[bytes]:
    found, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return found
        found.append(text[at : at + size])
        at += size
    return found


def read(text: bytes, sizes: list[int], *, min_long_bytes: int = 8) -> JsonBody:
    reader = LongStringReader(marker=MARKER, min_long_bytes=min_long_bytes)
    for piece in pieces(text, sizes):
        reader.feed(piece)
    return reader.finish()


def decoded(text: bytes, sizes: list[int]) -> Any:
    body = read(text, sizes)
    value = body.restore(msgspec.json.decode(body.json))
    return _with_restored_keys(value, body)


def _with_restored_keys(value: Any, body: JsonBody) -> Any:
    """Keys stay markers, which is no use to anybody but does no harm: no field that is read has such a name."""
    if isinstance(value, list):
        return [_with_restored_keys(item, body) for item in value]
    if isinstance(value, dict):
        return {body.restore(key): _with_restored_keys(item, body) for key, item in value.items()}
    return value


@given(values, cuts, st.booleans())
@example(["😀" * 9], [13], True)
@example(["😀" * 9], [1], True)
@example(["中" * 9], [1], False)
@example(['\\"' * 9], [1], True)
def test_any_value_in_any_pieces_is_what_it_is_in_one(value: Any, sizes: list[int], is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert decoded(text, sizes) == value


@given(st.text(alphabet='a"\\u{}[]:,d8e09fx', max_size=60), cuts)
@example('"aaaaaaaaaa\\ud83d"', [5])
@example('"aaaaaaaaaa\\ud83d\\u0041"', [5])
@example('"aaaaaaaaaa\\', [5])
@example('"aaaaaaaaaa\\x"', [5])
def test_what_is_no_json_is_none_in_pieces_either(text: str, sizes: list[int]) -> None:
    try:
        whole = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        with pytest.raises(msgspec.DecodeError):
            decoded(text.encode(), sizes)
    else:
        assert decoded(text.encode(), sizes) == whole


@given(st.binary(max_size=40), cuts)
def test_what_is_no_text_is_none_in_pieces_either(content: bytes, sizes: list[int]) -> None:
    text = b'["begins well ' + content + b'"]'
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decoded(text, sizes)
    else:
        assert decoded(text, sizes) == whole


def test_a_long_string_is_not_in_the_json_and_short_ones_are() -> None:
    text = json.dumps({"long": "x" * 100, "short": "y" * 5}).encode()
    body = read(text, [16])
    assert body.json == b'{"long": "%s 0", "short": "yyyyy"}' % MARKER.encode()
    assert list(body.long_strings.values()) == ["x" * 100]


def test_a_string_that_a_piece_cuts_is_left_where_it_is_when_it_is_short() -> None:
    text = json.dumps(["x" * 20] * 3).encode()
    body = read(text, [7], min_long_bytes=100)
    assert (body.json, body.long_strings) == (text, {})


def test_a_request_gets_its_long_texts_wherever_they_stand() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "z" * 500}]},
        {"role": "user", "content": "q" * 99},
    ]
    text = json.dumps({"messages": messages, "stop": ["s" * 300], "user": "u" * 400}).encode()
    request = RequestDecoder(ChatCompletionRequest, unbuilt={"audio": ()}).decode(read(text, [64]))
    assert request.messages == messages
    assert request.stop == ["s" * 300]


def test_a_long_string_that_is_not_well_formed_is_a_bad_request() -> None:
    reader = LongStringReader(marker=MARKER, min_long_bytes=8)
    reader.feed(b'{"prompt":"0123456789')
    with pytest.raises(msgspec.DecodeError) as refused:
        reader.feed(b'\\x and more than a dozen bytes behind it"}')
    assert isinstance(no_json(refused.value, b"{}"), InvalidRequestError)


def test_an_error_shows_the_beginning_of_a_long_value_and_no_marker() -> None:
    decoder = RequestDecoder(ChatCompletionRequest, unbuilt={"audio": ()})
    long = "z" * 500
    for fields in ({"response_format": {"type": long}}, {"audio": long}, {"audio": [{"deep": long}]}):
        body = read(json.dumps({"messages": [], **fields}).encode(), [99])
        with pytest.raises(InvalidRequestError) as caught:
            decoder.decode(body)
        assert MARKER not in str(caught.value)
        assert "zzzzz..." in str(caught.value)


def test_the_hundredth_long_value_is_not_taken_for_the_first() -> None:
    body = read(json.dumps([f"{number:03}" + "x" * 97 for number in range(101)]).encode(), [64])
    for number in (0, 1, 10, 100):
        marker = list(body.long_strings)[number]
        assert body.unmarked(f"[{marker}]") == f"[{number:03}{'x' * 57}...]"


def test_more_arrays_and_objects_than_can_be_decoded_in_a_moment_are_refused() -> None:
    for item in (b"[]", b"{}", b'{"a":[]}'):
        text = b'{"x":[' + b",".join([item] * 70_000) + b"]}"
        with pytest.raises(InvalidRequestError, match="more than 65536 arrays and objects"):
            read(text, [65536], min_long_bytes=65536)


def test_brackets_in_texts_are_not_arrays() -> None:
    text = json.dumps(["[{" * 1000] * 200).encode()
    assert decoded(text, [65536]) == json.loads(text)


def test_numbers_beside_a_long_string_stay_what_they_are() -> None:
    value = [[1, 2.5, None, True], ["y" * 50, 3], "z" * 50]
    assert decoded(json.dumps(value).encode(), [7]) == value
