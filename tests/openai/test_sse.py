"""The codec of server-sent events: what is encoded comes back, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UpstreamProtocolError
from headrace.openai.sse import DONE, DONE_DATA, SseDecoder, encode_event

event_data = st.binary(min_size=1, max_size=60).filter(lambda data: b"\r" not in data)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(stream) + 1) for position in cuts), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(edges)]


def decoded(chunks: list[bytes], *, decoder: SseDecoder | None = None) -> list[bytes]:
    decoder = decoder or SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_an_event_is_data_and_an_empty_line() -> None:
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'


def test_done_is_an_event_of_its_own() -> None:
    assert encode_event(DONE_DATA) == DONE
    assert decoded([DONE]) == [b"[DONE]"]


def test_a_carriage_return_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="carriage return"):
        encode_event(b"a\rb")


@given(st.lists(event_data, max_size=6), st.lists(st.integers(min_value=0, max_value=1000), max_size=12))
def test_decoding_gives_back_what_was_encoded_for_any_cuts(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(encode_event, events))
    assert decoded(cut(stream, cuts)) == events


@given(st.lists(event_data, max_size=6))
def test_decoding_works_byte_by_byte(events: list[bytes]) -> None:
    stream = b"".join(map(encode_event, events))
    assert decoded([bytes((byte,)) for byte in stream]) == events


@given(st.lists(st.sampled_from([b"data: a", b"data:b", b"data", b": note", b"id: 7", b"", b"x"]), max_size=10))
def test_every_line_ending_and_every_cut_reads_the_same(lines: list[bytes]) -> None:
    expected = decoded([b"".join(line + b"\n" for line in lines)])
    for ending in (b"\r\n", b"\r"):
        stream = b"".join(line + ending for line in lines)
        assert decoded([stream]) == expected
        assert decoded([bytes((byte,)) for byte in stream]) == expected


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=8))
def test_any_bytes_read_the_same_however_they_are_cut(stream: bytes, cuts: list[int]) -> None:
    assert decoded(cut(stream, cuts)) == decoded([stream])


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b": a comment\n\ndata: x\n\n", [b"x"]),
        (b"event: ping\nid: 3\nretry: 10\n\n", []),
        (b"event: e\ndata: x\n\n", [b"x"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data:x\n\n", [b"x"]),
        (b"data:  x\n\n", [b" x"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"database: x\n\n", []),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b"data: x\n\ndata: cut off", [b"x"]),
        (b"data: x\n", []),
        (b"\n\n\n", []),
    ],
)
def test_the_event_stream_format(stream: bytes, events: list[bytes]) -> None:
    assert decoded([stream]) == events


@pytest.mark.parametrize("chunks", [[b"data: " + b"x" * 200], [b"data: xxxxxxxx\n"] * 20, [b"x"] * 200])
def test_an_event_that_grows_beyond_the_bound_is_refused(chunks: list[bytes]) -> None:
    decoder = SseDecoder(max_event_bytes=100)
    with pytest.raises(UpstreamProtocolError, match="more than 100 bytes"):
        decoded(chunks, decoder=decoder)


def test_the_bound_is_for_each_event_not_for_the_stream() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    events = [decoder.feed(b"data: " + b"x" * 80 + b"\n\n") for _ in range(10)]
    assert events == [[b"x" * 80]] * 10
    assert repr(decoder) == "SseDecoder(num_buffered_bytes=0)"
