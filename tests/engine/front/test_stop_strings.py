"""Stop strings are found wherever the text is cut, and no character is shown too early, twice or never."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.front.stop_strings import StopStrings, StopStringScanner


def scan(pieces: list[str], stops: tuple[str, ...], *, include: bool = False) -> tuple[str, str | None]:
    scanner = StopStringScanner(StopStrings(stops), include_in_output=include)
    shown = ""
    for piece in pieces:
        result = scanner.feed(piece)
        shown += result.text
        if result.stopped_by is not None:
            return shown, result.stopped_by
    return shown + scanner.finish(), None


def first_stop(text: str, stops: tuple[str, ...], *, include: bool) -> tuple[str, str | None]:
    """The definition: the stop string that ends first, the one named first among equals."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["hello"], (), ("hello", None)),
        (["hel", "lo"], ("xyz",), ("hello", None)),
        (["ab", "cd"], ("bc",), ("a", "bc")),
        (["a", "a", "b"], ("aab",), ("", "aab")),
        (["aaab"], ("aab",), ("a", "aab")),
        (["one\n", "\ntwo"], ("\n\n",), ("one", "\n\n")),
        (["xSTO", "P"], ("STOP", "O"), ("xST", "O")),
        (["ab"], ("b", "ab"), ("a", "b")),
        (["ab"], ("ab", "b"), ("", "ab")),
        (["abab", "x"], ("aba",), ("", "aba")),
    ],
)
def test_the_text_ends_before_the_stop_string(
    pieces: list[str], stops: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    assert scan(pieces, stops) == expected


def test_the_stop_string_is_shown_when_asked_and_nothing_after_it() -> None:
    assert scan(["ab", "cd", "ef"], ("cde",), include=True) == ("abcde", "cde")


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    scanner = StopStringScanner(StopStrings(("STOP",)), include_in_output=False)
    assert [scanner.feed(piece).text for piece in ("hello S", "T", "x", "OP")] == ["hello ", "", "STx", "OP"]


def test_no_stop_string_ends_in_text_that_may_not_stop_but_one_may_begin_there() -> None:
    scanner = StopStringScanner(StopStrings(("ab",)), include_in_output=False)
    assert scanner.feed("ab a", may_stop=False).stopped_by is None
    assert scanner.feed("b").stopped_by == "ab"


TEXTS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8), include=st.booleans())
def test_where_the_text_is_cut_changes_nothing(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert scan(pieces, stops, include=include) == first_stop(text, stops, include=include)


def test_the_automaton_has_a_state_for_each_beginning_and_no_more() -> None:
    """So a character costs the same however many stop strings there are."""
    stops = StopStrings(("abc", "abd", "bd", "abc"))
    assert repr(stops) == "StopStrings(4, 7 states)"
    state = stops.after(stops.after(stops.after(0, "a"), "b"), "d")
    assert (stops.num_chars(state), stops.found(state)) == (3, "abd")
    assert (stops.open(state), stops.after(state, "x")) == (0, 0)
