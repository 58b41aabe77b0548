import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, PayloadTooLargeError
from headrace.gateway.http.message import HeadTooLargeError, Request
from headrace.gateway.http.request_reader import KnownHeads, RequestReader, SizeLimits

SIMPLE = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Thing: 1\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n"
)
UPGRADE = (
    b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"Content-Length: 5\r\n\r\nhello"
)
UPGRADE_CHUNKED = CHUNKED.replace(b"Host: a\r\n", b"Host: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n")
GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def read(*pieces: bytes, max_head_bytes: int = 1000, max_body_bytes: int = 1000) -> list[Request]:
    requests: list[Request] = []
    limits = SizeLimits(max_head_bytes=max_head_bytes, max_body_bytes=max_body_bytes)
    reader = RequestReader(limits=limits, on_head=lambda _: None, on_request=requests.append)
    for piece in pieces:
        reader.feed(piece)
    return requests


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("data", [SIMPLE, CHUNKED, UPGRADE, UPGRADE_CHUNKED])
def test_a_body_is_read_whatever_its_framing(data: bytes) -> None:
    (request,) = read(data)

    assert request.body == b"hello"
    assert request.keep_alive


@given(
    st.lists(st.sampled_from([SIMPLE, CHUNKED, UPGRADE, UPGRADE_CHUNKED, GET]), min_size=1, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_for_any_cuts_the_same_requests_come_out(messages: list[bytes], cuts: list[int]) -> None:
    whole = [request for message in messages for request in read(message)]

    assert read(*split(b"".join(messages), cuts)) == whole


@given(st.lists(st.tuples(st.sampled_from([SIMPLE, CHUNKED, UPGRADE, GET]), st.binary(max_size=50)), max_size=6))
def test_a_request_like_the_last_one_is_the_same_as_if_parsed_anew(messages: list[tuple[bytes, bytes]]) -> None:
    whole = [
        message.replace(b"Length: 5", b"Length: %d" % len(body)).replace(b"hello", body) for message, body in messages
    ]

    assert read(*whole) == [request for message in whole for request in read(message)]


@pytest.mark.parametrize(
    "length",
    [
        b"+5",
        b"5, 5",
        b"0x5",
        b"5_",
        b" 5",
        b"-5",
        b"5\r\nContent-Length: 6",
        b"5\r\nTransfer-Encoding: chunked",
        b"1" * 20,
    ],
)
def test_a_length_that_is_no_plain_number_is_no_better_behind_a_known_head(length: bytes) -> None:
    other = SIMPLE.replace(b"Length: 5", b"Length: " + length)
    results = []
    for before in ([], [SIMPLE, SIMPLE]):
        try:
            results.append(read(*before, other)[len(before) :])
        except HeadraceError as error:
            results.append(type(error))

    assert results[0] == results[1]


def test_a_body_that_is_too_long_is_refused_behind_a_known_head_too() -> None:
    long = SIMPLE.replace(b"Length: 5", b"Length: 1001").replace(b"hello", b"x" * 1001)

    with pytest.raises(PayloadTooLargeError):
        read(SIMPLE, SIMPLE, long)


def test_what_a_handler_does_to_the_fields_of_a_request_does_not_reach_the_next() -> None:
    first, second, third = read(SIMPLE, SIMPLE, SIMPLE)
    first.headers.clear()
    second.headers.clear()

    assert third.header(b"x-thing") == b"1"


def test_path_and_query_are_kept_and_an_absolute_url_loses_its_host() -> None:
    (one,), (two,) = read(SIMPLE), read(b"GET http://other:1/p?q HTTP/1.1\r\nHost: a\r\n\r\n")

    assert (one.target, one.path, two.target) == (b"/v1/completions?x=1", "/v1/completions", b"/p?q")


SMUGGLING = {
    "both framings": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "a list of lengths": b"Content-Length: 3, 3\r\n",
    "a signed length": b"Content-Length: +3\r\n",
    "a negative length": b"Content-Length: -3\r\n",
    "a hexadecimal length": b"Content-Length: 0x3\r\n",
    "an endless length": b"Content-Length: 99999999999999999999999\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "a coding that is not ours": b"Transfer-Encoding: gzip, chunked\r\n",
    "a coding almost ours": b"Transfer-Encoding: xchunked\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a folded field": b"X: 1\r\n  chunked\r\n",
    "two hosts": b"Host: b\r\n",
    "a null in a value": b"X: a\x00b\r\n",
    "a bare line feed": b"X: a\n",
}


@pytest.mark.parametrize("fields", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_what_can_be_read_in_two_ways_is_refused(fields: bytes) -> None:
    with pytest.raises(HeadraceError) as caught:
        read(b"POST / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\nabc")

    assert 400 <= caught.value.status_hint < 500


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", 400),
    ],
)
def test_what_is_not_served_is_refused_with_its_status(data: bytes, status: int) -> None:
    with pytest.raises(HeadraceError) as caught:
        read(data)

    assert caught.value.status_hint == status


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /" + b"x" * 2000],
        [b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"x" * 2000],
        [b"GET / HTTP/1.1\r\nHost: a\r\n"] + [b"x"] * 2000,
        [b"GET / HTTP/1.1\r\nHost: a\r\n"] + [b"x: y\r\n"] * 1000,
        [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"] + [b"t: y\r\n"] * 1000,
        [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;"] + [b"eeee"] * 1000,
    ],
)
def test_a_head_a_trailer_or_a_chunk_size_without_end_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(HeadTooLargeError):
        read(*pieces)


def test_a_head_has_at_most_256_fields() -> None:
    def request(num_fields: int) -> bytes:
        return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x:\r\n" * (num_fields - 1) + b"\r\n"

    assert len(read(request(256))) == 1
    with pytest.raises(HeadTooLargeError, match="256 fields"):
        read(request(257))


def test_a_body_in_many_small_chunks_takes_little_more_than_its_size() -> None:
    num_chunks, limits = 50_000, SizeLimits(max_head_bytes=1000, max_body_bytes=1 << 20)
    requests: list[Request] = []
    reader = RequestReader(limits=limits, on_head=lambda _: None, on_request=requests.append)
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(num_chunks // 100):
            reader.feed(b"2\r\nab\r\n" * 100)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(b"0\r\n\r\n")

    assert num_bytes < 2 * 2 * num_chunks
    assert requests[0].body == b"ab" * num_chunks


def test_of_heads_that_differ_only_small_ones_are_remembered() -> None:
    heads = KnownHeads()
    limits = SizeLimits(max_head_bytes=60_000, max_body_bytes=100)
    for size in (10, 10_000):
        reader = RequestReader(limits=limits, on_head=lambda _: None, on_request=lambda _: None, heads=heads)
        reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nX: %b\r\nContent-Length: 1\r\n\r\n1" % (b"x" * size))

    assert repr(heads) == "KnownHeads(1)"


def test_a_body_over_the_limit_is_refused_before_it_is_there() -> None:
    with pytest.raises(PayloadTooLargeError):
        read(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n")


def test_a_chunked_body_over_the_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLargeError):
        read(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001)


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes_give_requests_or_our_error(pieces: list[bytes]) -> None:
    with suppress(HeadraceError):
        assert all(request.method for request in read(*pieces))
