"""Texts that are kept: found whole, resumed from, and never beyond what they share."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tokenization.records import Namespace, Records, Resume
from headrace.tokenization.segments import GPT2_REGEX, LOOKAHEAD, tiktoken_cut_rules
from headrace.tokenization.works import EncodedText

_SPACE = Namespace("n")
_RULES = tiktoken_cut_rules(GPT2_REGEX, [])


def _records(
    *, max_bytes: int = 1 << 20, max_entries: int = 100, whole: int = 65536, resumed: int = 1 << 20
) -> Records:
    return Records(max_bytes=max_bytes, max_entries=max_entries, max_whole_text=whole, max_resumed_text=resumed)


def _encoded(text: str) -> EncodedText:
    """One id for each character, which says what character it is: wrong ids are easy to see."""
    cuts = tuple((cut, cut) for cut in _RULES.plan(text))
    return EncodedText(np.frombuffer(text.encode("utf-32-le"), np.uint32), cuts)


def _put(records: Records, text: str, resumed: Resume | None = None) -> None:
    records.put(_SPACE, text, _encoded(text), resumed=resumed)


def _words(count: int, *, salt: str = "") -> str:
    return "".join(f"word{salt} number {index} of the text\n" for index in range(count))


def _is_a_right_start(resume: Resume, text: str) -> bool:
    ids = np.frombuffer(text[: resume.start].encode("utf-32-le"), np.uint32)
    return resume.token_ids.tolist() == ids.tolist() and resume.start in set(_RULES.all_cuts(text))


def test_short_and_long_texts_are_found_whole_and_others_are_not() -> None:
    records = _records()
    for text in ("short", _words(400)):
        _put(records, text)
        found = records.get(_SPACE, "".join(list(text)))
        assert found is not None
        assert found.tolist() == _encoded(text).token_ids.tolist()
        assert records.get(_SPACE, text[:-1] + "#") is None
        assert records.get(Namespace("other"), text) is None


def test_a_text_that_grows_resumes_at_the_last_cut() -> None:
    records = _records()
    text = _words(400)
    _put(records, text)
    grown = text + "word and then some more"
    resume = records.resume(_SPACE, grown)
    assert resume is not None
    assert resume.is_whole
    assert len(text) - resume.start < 64
    assert _is_a_right_start(resume, grown)


def test_a_text_that_parts_in_the_middle_resumes_before_that() -> None:
    records = _records()
    text = _words(2000)
    _put(records, text)
    other = text[:30_000] + "something else" + text[30_000:]
    resume = records.resume(_SPACE, other)
    assert resume is not None
    assert not resume.is_whole
    assert 24_000 < resume.start <= 30_000
    assert _is_a_right_start(resume, other)


@given(shared=st.integers(0, 60_000), added=st.sampled_from(["", "?", " other words" * 5000]))
def test_the_last_cut_that_two_texts_share_is_found_wherever_they_part(shared: int, added: str) -> None:
    known = _words(2000)
    records = _records()
    _put(records, known)
    text = known[:shared] + added
    cuts = [cut for cut, _ in _encoded(known).cuts if cut < len(text)]
    shared_cuts = [cut for cut in cuts if text[: cut + LOOKAHEAD] == known[: cut + LOOKAHEAD]]
    resume = records.resume(_SPACE, text)
    assert (resume.start if resume else None) == (shared_cuts[-1] if shared_cuts else None)


def test_a_cut_is_used_only_where_the_characters_after_it_are_equal_too() -> None:
    records = _records()
    text = _words(200)
    _put(records, text)
    cut = _encoded(text).cuts[-1][0]
    changed = text[:cut] + "\n\n" + text[cut:]
    resume = records.resume(_SPACE, changed)
    assert resume is not None
    assert resume.start < cut
    assert _is_a_right_start(resume, changed)


def test_a_continued_text_takes_the_place_of_the_one_before() -> None:
    records = _records()
    text = _words(300)
    _put(records, text)
    for _ in range(5):
        text += _words(20, salt="x")
        _put(records, text, records.resume(_SPACE, text))
    assert len(records) == 1
    assert records.get(_SPACE, text) is not None


def test_many_texts_with_one_beginning_all_find_it() -> None:
    records = _records(max_bytes=1 << 24, max_entries=1000)
    head = _words(400)
    for index in range(100):
        text = f"{head}{index} and a question of its own\n"
        resume = records.resume(_SPACE, text)
        assert index == 0 or (resume is not None and resume.start > len(head) - 5000)
        _put(records, text)
        assert records.get(_SPACE, text) is not None
    assert all(records.get(_SPACE, f"{head}{i} and a question of its own\n") is not None for i in range(92, 100))


def test_bytes_and_entries_are_bounded_and_nothing_of_what_left_stays() -> None:
    records = _records(max_bytes=400_000, max_entries=20)
    for index in range(300):
        _put(records, _words(100 + index % 50, salt=str(index)))
        seen = records.statistics()
        assert seen.num_bytes <= 400_000
        assert seen.num_entries <= 20
    assert len(records._probes) <= 20 * 8
    assert seen.num_evictions > 250


def test_limits_switch_either_way_off() -> None:
    text = _words(400)
    grown = text + "word and more"
    for records, is_whole, is_resumed in (
        (_records(whole=0), False, True),
        (_records(resumed=0), True, False),
        (_records(max_bytes=0), False, False),
        (_records(whole=10, resumed=100), False, False),
    ):
        _put(records, text)
        assert (records.get(_SPACE, text) is not None) is is_whole
        assert (records.resume(_SPACE, grown) is not None) is is_resumed


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_kept_a_start_is_always_right(data: st.DataObject) -> None:
    """Texts are made of few different pieces, so that they share beginnings of every length."""
    records = _records(max_bytes=300_000)
    pieces = [_words(60), _words(61), "\n", "word", " b", "/", "\n\nx", _words(30, salt="y")]
    for _ in range(12):
        text = "".join(data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=6)))
        whole = records.get(_SPACE, text)
        assert whole is None or whole.tolist() == _encoded(text).token_ids.tolist()
        resume = records.resume(_SPACE, text)
        assert resume is None or _is_a_right_start(resume, text)
        _put(records, text, resume)
