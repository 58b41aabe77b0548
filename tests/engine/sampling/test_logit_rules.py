"""A row's rules give what the slow reference below gives, alone and in any batch."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.runner.logit_rules import SequenceSampling, apply_rules
from headrace.engine.runner.sampler import sample, uniform
from headrace.engine.sampling_params import SamplingParams

VOCABULARY = 12
Row = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One request at one moment, and its row of logits."""

    logits: tuple[float, ...]
    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    stops: frozenset[int]
    bad_words: tuple[tuple[int, ...], ...]
    mask: tuple[bool, ...] | None

    def sequence(self) -> SequenceSampling:
        return SequenceSampling(
            params=self.params,
            seed=self.params.seed or 0,
            stop_token_ids=self.stops,
            prompt_token_ids=self.prompt,
            output_token_ids=list(self.output),
            bad_words=self.bad_words,
            grammar_mask=None if self.mask is None else np.packbits(self.mask, bitorder="little").tobytes(),
        )

    def row(self) -> torch.Tensor:
        return torch.tensor([self.logits], dtype=torch.float32)


def reference_rules(case: Case) -> Row:
    """The rules one after the other, token by token."""
    row = np.array(case.logits, dtype=np.float32).astype(np.float64)
    params = case.params
    if case.mask is not None:
        row[~np.array(case.mask)] = -math.inf
    if params.allowed_token_ids is not None:
        row[[token for token in range(VOCABULARY) if token not in params.allowed_token_ids]] = -math.inf
    for word in case.bad_words:
        if case.output[len(case.output) - len(word) + 1 :] == word[:-1] and len(case.output) >= len(word) - 1:
            row[word[-1]] = -math.inf
    if len(case.output) < params.min_tokens:
        ends = [stop for stop in case.stops if stop < VOCABULARY]
        others = [token for token in range(VOCABULARY) if token not in ends]
        if case.mask is None or np.isfinite(row[others]).any():
            row[ends] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    for token in {*case.prompt, *case.output}:
        factor = params.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(case.output):
        row[token] -= params.frequency_penalty * case.output.count(token) + params.presence_penalty
    return row


def reference_draw(row: Row, params: SamplingParams, *, seed: int, num_drawn: int) -> int:
    """The token, by sorting everything."""
    if params.is_greedy:
        return int(row.argmax())
    weights = np.exp(row / params.temperature - (row / params.temperature).max())
    weights /= weights.sum()
    weights[weights < params.min_p * weights.max()] = 0.0
    if params.top_k == 0 and params.top_p == 1.0:
        order = np.arange(len(row))
    else:
        order = np.argsort(-weights, kind="stable")
        kept = weights[order]
        if params.top_k:
            kept[params.top_k :] = 0.0
        if params.top_p < 1.0:
            before = np.cumsum(kept) - kept
            kept[1:][before[1:] >= params.top_p * kept.sum()] = 0.0
        weights[order] = kept
    cumulated = np.cumsum(weights[order])
    place = int(np.searchsorted(cumulated, uniform(seed, num_drawn) * cumulated[-1], side="right"))
    return int(order[min(place, int(np.flatnonzero(weights[order]).max()))])


tokens = st.integers(min_value=0, max_value=VOCABULARY - 1)
token_lists = st.lists(tokens, max_size=8).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # Whole numbers in float32 and distinct weights: neither rounding nor ties decide.
    logits = draw(st.permutations([number / 2 - 3 for number in range(VOCABULARY)]))
    kwargs: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 1, 3, 11])),
        "top_p": draw(st.sampled_from([0.3, 0.77, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 0.11])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.25, 0.75])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.625, -0.375])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.3125])),
        "min_tokens": draw(st.sampled_from([0, 3])),
        "seed": draw(st.integers(min_value=0, max_value=2**40)),
        "max_tokens": None,
        "logit_bias": draw(st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -1.0625, 2.9375]), max_size=4)),
        "allowed_token_ids": draw(st.none() | st.lists(tokens, min_size=1, max_size=9)),
    }
    return Case(
        logits=tuple(logits),
        params=SamplingParams(**kwargs),
        prompt=draw(token_lists),
        output=draw(token_lists),
        stops=draw(st.frozensets(st.integers(min_value=0, max_value=VOCABULARY + 2), max_size=3)),
        bad_words=tuple(draw(st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4))),
        mask=draw(st.none() | st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY).map(tuple)),
    )


@given(cases())
@settings(max_examples=80, deadline=None)
def test_rules_change_a_row_as_the_reference_does(case: Case) -> None:
    row = case.row()
    empty = apply_rules(row, [case.sequence()])
    expected = reference_rules(case)
    np.testing.assert_allclose(row[0].double().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert bool(empty) == (not np.isfinite(expected).any())


@given(st.lists(cases(), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_batch_draws_what_the_reference_draws_for_each_row(batch: list[Case]) -> None:
    drawn = sample(torch.cat([case.row() for case in batch]), [case.sequence() for case in batch])
    for case, token in zip(batch, drawn, strict=True):
        row = reference_rules(case)
        if not np.isfinite(row).any():
            assert token is None
            continue
        distinct = np.unique(np.round(row[np.isfinite(row)], 4))
        if len(distinct) == np.isfinite(row).sum():  # equal weights may stand in either order
            assert token == reference_draw(row, case.params, seed=case.params.seed or 0, num_drawn=len(case.output))
        assert [token] == sample(case.row(), [case.sequence()]), "a row depends on its batch"


def test_a_plain_request_is_not_looked_at() -> None:
    sequence = SequenceSampling(
        params=SamplingParams(temperature=0.7, top_p=0.9, seed=1),
        seed=1,
        stop_token_ids=frozenset({2}),
        prompt_token_ids=(1, 2),
    )
    assert sequence.is_plain
    row = torch.randn(1, VOCABULARY)
    before = row.clone()
    assert apply_rules(row, [sequence]) == []
    assert torch.equal(row, before)


@pytest.mark.parametrize("output", [(), (3,), (3, 4)])
def test_a_bad_word_of_several_tokens_is_forbidden_at_its_last_one(output: tuple[int, ...]) -> None:
    sequence = SequenceSampling(
        params=SamplingParams(temperature=0.0),
        seed=0,
        stop_token_ids=frozenset(),
        prompt_token_ids=(3, 4),  # a prompt that ends like the word begins does not count
        output_token_ids=list(output),
        bad_words=((3, 4, 5),),
    )
    row = torch.zeros(1, VOCABULARY)
    apply_rules(row, [sequence])
    assert (row[0, 5].item() == -math.inf) == (output == (3, 4))


def test_a_mask_shorter_than_the_row_forbids_what_it_does_not_name() -> None:
    sequence = SequenceSampling(
        params=SamplingParams(), seed=0, stop_token_ids=frozenset(), prompt_token_ids=(), grammar_mask=b"\xff"
    )
    row = torch.zeros(1, VOCABULARY)
    apply_rules(row, [sequence])
    assert torch.isfinite(row[0]).tolist() == [True] * 8 + [False] * 4


def test_penalties_count_tokens_as_they_are_drawn() -> None:
    params = SamplingParams(frequency_penalty=1.0, max_tokens=None)
    grown = SequenceSampling(params=params, seed=0, stop_token_ids=frozenset(), prompt_token_ids=())
    for token in (1, 2, 1):
        grown.append(token)
    row = torch.zeros(1, VOCABULARY)
    apply_rules(row, [grown])
    assert row[0, :3].tolist() == [0.0, -2.0, -1.0]
