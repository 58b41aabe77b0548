"""Log probabilities are the model's own, whatever the batch and the rules."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.front.answer_logprobs import AnswerLogprobs
from headrace.engine.outputs import Logprob
from headrace.engine.runner.logit_rules import SequenceSampling
from headrace.engine.runner.logprobs import SampledLogprobs, prompt_logprobs
from headrace.engine.runner.sampler import sample
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenLogprobs

VOCABULARY = 9


def sequence(params: SamplingParams) -> SequenceSampling:
    return SequenceSampling(params=params, seed=0, stop_token_ids=frozenset(), prompt_token_ids=())


def reference(row: list[float]) -> np.ndarray:
    logits = np.array(row, dtype=np.float64)
    return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())


@given(
    st.permutations([number / 3 for number in range(VOCABULARY)]),
    st.integers(min_value=0, max_value=VOCABULARY - 1),
    st.integers(min_value=0, max_value=4),
)
@settings(deadline=None)
def test_a_position_tells_its_own_token_and_the_likeliest(row: list[float], token: int, num_top: int) -> None:
    told = SampledLogprobs(torch.tensor([row]), [sequence(SamplingParams(logprobs=num_top))]).told([token])[0]
    expected = reference(row)
    order = np.argsort(-expected)
    assert told.token_ids == (token, *order[:num_top])
    assert told.logprobs == pytest.approx([expected[token], *expected[order[:num_top]]], abs=1e-5)
    assert told.rank == int(np.flatnonzero(order == token)[0]) + 1


def test_only_rows_that_want_them_tell() -> None:
    logits = torch.randn(3, VOCABULARY)
    wanting = [SamplingParams(), SamplingParams(logprobs=0), SamplingParams(logprob_token_ids=[7, 3])]
    told = SampledLogprobs(logits, [sequence(params) for params in wanting]).told([0, 1, 2])
    assert {row: one.token_ids for row, one in told.items()} == {1: (1,), 2: (2, 7, 3)}


def test_nobody_wanting_any_costs_nothing() -> None:
    assert not SampledLogprobs(torch.randn(2, VOCABULARY), [sequence(SamplingParams())] * 2)


def test_rules_and_temperature_do_not_change_them() -> None:
    logits = torch.randn(1, VOCABULARY)
    params = SamplingParams(temperature=0.1, logprobs=2, logit_bias={4: 50.0}, presence_penalty=1.0)
    wanted = SampledLogprobs(logits, [sequence(params)])
    expected = reference(logits[0].tolist())
    token = sample(logits, [sequence(params)])[0]
    assert token == 4
    assert wanted.told([token])[0].logprobs[0] == pytest.approx(expected[4], abs=1e-5)


@pytest.mark.parametrize("num_rows", [1, 63, 64, 65, 200])
def test_a_prompt_is_told_of_row_by_row_however_long(num_rows: int) -> None:
    hidden = torch.randn(num_rows, VOCABULARY)
    following = [row % VOCABULARY for row in range(num_rows)]
    told = prompt_logprobs(hidden, following, num_top=1, logits_of=lambda rows: rows)
    assert [one.token_ids[0] for one in told] == following
    for row, one in zip(hidden.tolist(), told, strict=True):
        assert one.logprobs == pytest.approx([reference(row)[one.token_ids[0]], reference(row).max()], abs=1e-5)


def test_an_answers_positions_come_as_dicts_with_the_drawn_token_first() -> None:
    log = AnswerLogprobs(SamplingParams(logprobs=2), str)
    log.add([TokenLogprobs((5, 3, 5), (-1.5, -0.5, -1.5), 2)])
    assert log.take(is_delta=False) == [{5: Logprob(-1.5, 2, "5"), 3: Logprob(-0.5, 1, "3")}]
    assert list(log.take(is_delta=False)[0]) == [5, 3]  # type: ignore[index]
    assert log.cumulative == -1.5


def test_deltas_tell_each_position_once_and_the_prompt_once() -> None:
    log = AnswerLogprobs(SamplingParams(logprobs=0, prompt_logprobs=0), None)
    log.add_prompt([TokenLogprobs((1,), (-0.25,), 1)])
    log.add([TokenLogprobs((5,), (-1.0,), 1)])
    assert log.take_prompt(is_delta=True) == [None, {1: Logprob(-0.25, 1, None)}]
    assert log.take_prompt(is_delta=True) is None
    assert log.take(is_delta=True) == [{5: Logprob(-1.0, 1, None)}]
    log.add([TokenLogprobs((6,), (-2.0,), 1)])
    assert log.take(is_delta=True) == [{6: Logprob(-2.0, 1, None)}]
    assert log.cumulative == -3.0


def test_tokens_asked_for_by_id_have_no_rank() -> None:
    log = AnswerLogprobs(SamplingParams(logprob_token_ids=[7]), None)
    log.add([TokenLogprobs((5, 7), (-1.0, -2.0), 4)])
    assert log.take(is_delta=False) == [{5: Logprob(-1.0, 4, None), 7: Logprob(-2.0, None, None)}]
