"""Reads that may be handed on unseen are told from all others, in C as in Python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.http.chunks import content_of_chunks
from headrace.gateway.http.plain_events import in_python, num_plain_events

_PIECES = [b"data: x", b"\n", b"\n\n", b"\r\n", b'"usage"', b'"usag', b'e"', b"", b"0\r\n\r\n", b"\xff"]
_CONTENTS = st.lists(st.sampled_from(_PIECES), max_size=6).map(b"".join)
_READS = st.one_of(
    st.lists(_CONTENTS, max_size=4).map(lambda parts: b"".join(_framed(part) for part in parts)),
    st.lists(st.sampled_from([b"5", b"\r\n", b"\n", b"a", b"0", b"data:", b"3\r\na\n\n\r\n"]), max_size=8).map(
        b"".join
    ),
    st.binary(max_size=20),
)


def _framed(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@given(_READS)
def test_c_and_python_find_the_same(read: bytes) -> None:
    assert num_plain_events(read) == in_python(read)


@given(_READS)
def test_what_is_handed_on_unseen_is_whole_events_without_usage(read: bytes) -> None:
    num_events = num_plain_events(read)
    if num_events:
        content = content_of_chunks(read)
        assert content is not None
        assert content.endswith(b"\n\n")
        assert b'"usage"' not in content
        assert content.count(b"\n\n") == num_events


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5))
def test_nothing_plain_is_missed(texts: list[bytes]) -> None:
    events = [b"data: %b\n\n" % text.hex().encode() for text in texts]
    assert num_plain_events(b"".join(map(_framed, events))) == len(events)
    assert num_plain_events(_framed(b"".join(events))) == len(events)


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"0\r\n\r\n",
        _framed(b"data: x\n\n") + b"0\r\n\r\n",
        _framed(b"data: x\n\n")[:-1],
        _framed(b"data: x\n"),
        _framed(b"data: x\r\n\r\n"),
        _framed(b"\ndata: x\n\n"),
        _framed(b'data: {"usage":null}\n\n'),
        _framed(b"data: x\n\n") + _framed(b'data: {"usage":1}\n\n'),
        b"00000009\r\ndata: x\n\n\r\n",
        b"9;a=b\r\ndata: x\n\n\r\n",
        b"9\ndata: x\n\n\r\n",
        b"fffffff\r\n",
    ],
)
@pytest.mark.parametrize("count", [num_plain_events, in_python])
def test_all_others_are_looked_into(count: object, read: bytes) -> None:
    assert callable(count)
    assert count(read) == 0
