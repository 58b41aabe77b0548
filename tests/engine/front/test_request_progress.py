"""One request's outputs, from the deltas of the core to what its consumer takes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import RequestOutput, RequestOutputKind, SamplingParams
from headrace.engine.front.request_progress import RequestProgress
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineGenerateError
from headrace.tokenization import ByteTokenizer

END = 258


def make(*, notified: list[int] | None = None, **params: object) -> RequestProgress:
    notified = [] if notified is None else notified
    progress = RequestProgress(
        request_id="r",
        core_id="r#0",
        params=SamplingParams(**{"max_tokens": 100, **params}),
        arrival_time=1.0,
        notify=lambda: notified.append(1),
    )
    progress.set_prompt(
        "hi",
        token_ids=np.array([1, 2], dtype=np.uint32),
        decoder=ByteTokenizer().incremental_decoder(skip_special_tokens=True),
        eos_token_ids=frozenset({END}),
    )
    return progress


def delta(text: str | bytes, *more: int, **fields: object) -> TokenDelta:
    data = text.encode() if isinstance(text, str) else text
    return TokenDelta(request_id="r#0", new_token_ids=(*data, *more), **fields)


def taken(progress: RequestProgress) -> RequestOutput:
    output = progress.take()
    assert output is not None
    return output


def test_cumulative_outputs_carry_everything_so_far() -> None:
    progress = make()
    progress.apply(delta("a"), now=2.0)
    assert taken(progress).outputs[0].text == "a"
    progress.apply(delta("b", finish_reason="length"), now=3.0)
    last = taken(progress)
    assert (last.outputs[0].text, last.outputs[0].token_ids, last.finished) == ("ab", [97, 98], True)
    assert (last.prompt, last.prompt_token_ids, last.outputs[0].finish_reason) == ("hi", [1, 2], "length")


def test_deltas_that_a_late_consumer_missed_are_joined() -> None:
    progress = make(output_kind=RequestOutputKind.DELTA)
    for text in ("a", "b", "c"):
        progress.apply(delta(text), now=2.0)
    assert (taken(progress).outputs[0].text, progress.take()) == ("abc", None)
    progress.apply(delta("d", finish_reason="length"), now=2.0)
    assert (taken(progress).outputs[0].token_ids, progress.is_exhausted) == ([100], True)


def test_final_only_gives_one_output_and_notifies_once() -> None:
    notified: list[int] = []
    progress = make(output_kind=RequestOutputKind.FINAL_ONLY, notified=notified)
    progress.apply(delta("a"), now=2.0)
    assert progress.take() is None
    progress.apply(delta("b", finish_reason="length"), now=2.0)
    assert (taken(progress).outputs[0].text, notified) == ("ab", [1])


def test_a_stop_token_is_counted_but_not_shown() -> None:
    progress = make(skip_special_tokens=False)
    progress.apply(delta("a", END, finish_reason="stop", stop_reason=END), now=2.0)
    completion = taken(progress).outputs[0]
    assert (completion.text, completion.token_ids, completion.stop_reason) == ("a", [97, END], None)


def test_a_stop_token_is_shown_when_asked() -> None:
    progress = make(include_stop_str_in_output=True, stop_token_ids=[98])
    progress.apply(delta("ab", finish_reason="stop", stop_reason=98), now=2.0)
    completion = taken(progress).outputs[0]
    assert (completion.text, completion.stop_reason) == ("ab", 98)


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it() -> None:
    progress = make(stop="bc")
    progress.apply(delta("abcd"), now=2.0)
    completion = taken(progress).outputs[0]
    assert (completion.text, completion.token_ids) == ("a", [97, 98, 99])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "bc")


def test_a_stop_string_does_not_end_before_min_tokens() -> None:
    progress = make(stop="a", min_tokens=2)
    for text in ("a", "a", "x", "a"):
        progress.apply(delta(text), now=2.0)
    assert taken(progress).outputs[0].text == "aax"


def test_held_back_text_is_shown_when_the_answer_ends() -> None:
    progress = make(stop="abc")
    progress.apply(delta("ab", finish_reason="length"), now=2.0)
    assert taken(progress).outputs[0].text == "ab"


def test_half_a_character_is_never_shown_and_never_lost() -> None:
    progress = make(output_kind=RequestOutputKind.DELTA)
    first, second = "é".encode()
    progress.apply(delta(bytes([first])), now=2.0)
    assert taken(progress).outputs[0].text == ""
    progress.apply(delta(bytes([second]), finish_reason="length"), now=2.0)
    assert taken(progress).outputs[0].text == "é"


def test_without_detokenization_there_are_ids_and_no_text() -> None:
    progress = make(detokenize=False)
    progress.set_prompt(None, token_ids=np.array([1], dtype=np.uint32), decoder=None, eos_token_ids=frozenset())
    progress.apply(delta("ab", finish_reason="length"), now=2.0)
    assert (taken(progress).outputs[0].text, progress.num_tokens) == ("", 2)


def test_an_abort_gives_a_last_output_with_what_there_was() -> None:
    progress = make(stop="abc")
    progress.apply(delta("xa"), now=2.0)
    progress.abort(now=3.0)
    progress.apply(delta("y"), now=4.0)
    completion = taken(progress).outputs[0]
    assert (completion.text, completion.finish_reason, progress.is_exhausted) == ("xa", "abort", True)


def test_an_error_comes_once_and_after_what_was_generated() -> None:
    progress = make()
    progress.apply(delta("a"), now=2.0)
    progress.apply(delta("", finish_reason="error", error="no room"), now=3.0)
    assert not taken(progress).finished
    with pytest.raises(EngineGenerateError, match="no room"):
        progress.take()
    assert progress.take() is None
    assert progress.is_exhausted


def test_an_output_taken_early_does_not_change_later() -> None:
    progress = make()
    progress.apply(delta("a"), now=2.0)
    early = taken(progress)
    progress.apply(delta("b"), now=2.0)
    taken(progress)
    assert early.outputs[0].token_ids == [97]


def test_metrics_tell_first_last_and_end() -> None:
    progress = make()
    progress.apply(delta(""), now=1.5)
    progress.apply(delta("a"), now=2.0)
    progress.apply(delta("b", finish_reason="length"), now=3.0)
    metrics = taken(progress).metrics
    assert (metrics.arrival_time, metrics.first_token_time, metrics.finished_time) == (1.0, 2.0, 3.0)
    assert metrics.num_generation_tokens == 2


@given(
    data=st.binary(min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 39)),
    takes=st.sets(st.integers(0, 39)),
    stop=st.sampled_from([None, "a", "ab", "\ufffd"]),
)
def test_joined_deltas_equal_the_whole_however_it_is_cut_and_taken(
    data: bytes, cuts: set[int], takes: set[int], stop: str | None
) -> None:
    whole = make(stop=stop)
    whole.apply(delta(data, finish_reason="length"), now=2.0)
    expected = taken(whole).outputs[0]
    progress = make(stop=stop, output_kind=RequestOutputKind.DELTA)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    outputs = []
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        progress.apply(delta(data[start:end], finish_reason="length" if end == len(data) else None), now=2.0)
        if index in takes:
            outputs.append(progress.take())
    outputs.append(progress.take())
    completions = [output.outputs[0] for output in outputs if output is not None]
    assert "".join(completion.text for completion in completions) == expected.text
    assert list(itertools.chain.from_iterable(completion.token_ids for completion in completions)) == expected.token_ids
    assert completions[-1].finish_reason == expected.finish_reason
