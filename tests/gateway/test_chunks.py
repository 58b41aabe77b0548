"""Reads that are whole chunks are told from all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.http.chunks import content_of_chunks


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5))
def test_whole_chunks_give_what_they_hold(parts: list[bytes]) -> None:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    assert content_of_chunks(framed) == b"".join(parts)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=3), st.data())
def test_a_read_that_ends_inside_a_chunk_is_left_to_the_parser(parts: list[bytes], data: st.DataObject) -> None:
    frames = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
    num_left = data.draw(st.integers(1, len(frames[-1]) - 1))
    assert content_of_chunks(b"".join(frames[:-1]) + frames[-1][:num_left]) is None


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"0\r\n\r\n",
        b"2\r\nhi\r\n0\r\n\r\n",
        b"2;name=value\r\nhi\r\n",
        b"+2\r\nhi\r\n",
        b"0x2\r\nhi\r\n",
        b" 2\r\nhi\r\n",
        b"2_0\r\n" + b"x" * 0x20 + b"\r\n",
        b"2\nhi\n",
        b"2\r\nhi\n\n",
        b"3\r\nhi\r\n",
        b"1\r\nhi\r\n",
        b"\r\n2\r\nhi\r\n",
        b"hi\r\n",
    ],
)
def test_what_is_not_plainly_whole_chunks_is_left_to_the_parser(read: bytes) -> None:
    assert content_of_chunks(read) is None
