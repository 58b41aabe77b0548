from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.event_boundary import EventBoundary

EVENTS = st.lists(
    st.tuples(st.sampled_from([b"data: x", b": ping", b"event: a\ndata: y"]), st.sampled_from([b"\n\n", b"\r\n\r\n"])),
    max_size=6,
).map(lambda parts: b"".join(body + end for body, end in parts))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(EVENTS, st.binary(max_size=5), st.lists(st.integers(0, 100)))
def test_for_any_cuts_nothing_is_lost_or_changed(events: bytes, rest: bytes, cuts: list[int]) -> None:
    boundary = EventBoundary()
    given_out = b"".join(boundary.push(piece) for piece in split(events + rest, cuts))

    assert given_out + boundary.take_rest() == events + rest


@given(EVENTS, st.lists(st.integers(0, 100)))
def test_for_any_cuts_only_whole_events_come_out(events: bytes, cuts: list[int]) -> None:
    boundary = EventBoundary()
    pieces = [boundary.push(piece) for piece in split(events + b"data: half", cuts)]

    assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in pieces if piece)
    assert b"".join(pieces) == events


def test_a_whole_event_is_handed_on_as_it_is() -> None:
    data = b"data: x\n\n"

    assert EventBoundary().push(data) is data


def test_an_event_too_long_to_hold_goes_on_in_pieces() -> None:
    boundary = EventBoundary()
    piece = b"x" * 70_000

    assert boundary.push(piece) == piece
    assert boundary.is_mid_event
    assert boundary.push(b"\n\n") == b"\n\n"
    assert not boundary.is_mid_event
