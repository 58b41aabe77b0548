"""Each row is drawn by its own parameters, from its own numbers."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.runner.sampler import SequenceSampling, sample, uniform
from headrace.engine.sampling_params import SamplingParams

PROBABILITIES = [0.5, 0.25, 0.15, 0.07, 0.03]
LOGITS = torch.tensor(PROBABILITIES).log()


def sequence(
    *,
    seed: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    stop: tuple[int, ...] = (),
    **params: Any,
) -> SequenceSampling:
    return SequenceSampling(
        params=SamplingParams(**{"temperature": 1.0, **params}),
        seed=seed,
        stop_token_ids=frozenset(stop),
        prompt_token_ids=prompt,
        output_token_ids=list(output),
    )


def shares(num_draws: int = 4000, **params: Any) -> list[float]:
    """How often each token is drawn by requests that differ in their seeds."""
    sequences = [sequence(seed=seed, **params) for seed in range(num_draws)]
    counts = Counter(sample(LOGITS.repeat(num_draws, 1), sequences))
    return [counts[token_id] / num_draws for token_id in range(len(PROBABILITIES))]


def renormalized(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, renormalized([p**2 for p in PROBABILITIES])),
        ({"temperature": 2.0}, renormalized([p**0.5 for p in PROBABILITIES])),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_p": 0.76}, renormalized([0.5, 0.25, 0.15, 0, 0])),
        ({"min_p": 0.2}, renormalized([0.5, 0.25, 0.15, 0, 0])),
        ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_k": 4, "min_p": 0.4}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_their_probability_says(params: dict[str, Any], expected: list[float]) -> None:
    for share, probability in zip(shares(**params), expected, strict=True):
        assert share == pytest.approx(probability, abs=0.025)
        assert (share == 0) == (probability == 0)


def test_a_cut_beyond_the_candidates_draws_like_one_within(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    sequences = [sequence(seed=seed, top_p=0.97, top_k=0 if seed % 2 else 290) for seed in range(8)]
    wide = sample(logits.clone(), sequences)
    monkeypatch.setattr("headrace.engine.runner.sampler._NUM_CANDIDATES", 300)
    assert sample(logits.clone(), sequences) == wide


def test_temperature_0_takes_the_most_likely_token() -> None:
    assert sample(LOGITS.unsqueeze(0), [sequence(temperature=0.0)]) == [0]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "seed": st.integers(0, 2**63 - 1),
                "temperature": st.sampled_from([0.0, 0.7, 1.3]),
                "top_k": st.integers(0, 6),
                "top_p": st.sampled_from([0.3, 0.9, 1.0]),
                "min_p": st.sampled_from([0.0, 0.1]),
                "repetition_penalty": st.sampled_from([1.0, 1.4]),
                "prompt": st.lists(st.integers(0, 19), max_size=3).map(tuple),
                "output": st.lists(st.integers(0, 19), max_size=3).map(tuple),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_row_is_drawn_the_same_alone_and_in_any_batch(rows: list[dict[str, Any]]) -> None:
    logits = torch.randn(len(rows), 20, generator=torch.Generator().manual_seed(1)) * 2
    together = sample(logits.clone(), [sequence(**row) for row in rows])
    alone = [sample(logits[i : i + 1].clone(), [sequence(**row)])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_a_requests_draws_differ_from_token_to_token() -> None:
    flat = torch.zeros(1, 1000)
    draws = [sample(flat.clone(), [sequence(seed=5, output=(0,) * index)])[0] for index in range(20)]
    assert len(set(draws)) > 15


def test_a_repetition_penalty_weakens_tokens_of_prompt_and_answer_once() -> None:
    row = torch.tensor([[2.0, -1.0, 1.9, 1.5]])
    penalized = sequence(temperature=0.0, repetition_penalty=2.0, prompt=(0, 0, 1), output=(2,))
    assert sample(row, [penalized]) == [3]
    torch.testing.assert_close(row, torch.tensor([[1.0, -2.0, 0.95, 1.5]]))


def test_presence_and_frequency_penalties_weaken_tokens_of_the_answer() -> None:
    row = torch.tensor([[2.0, 2.0, 2.0, 0.0]])
    penalized = sequence(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25, prompt=(2,), output=(0, 0, 1))
    assert sample(row, [penalized]) == [2]
    torch.testing.assert_close(row, torch.tensor([[1.0, 1.25, 2.0, 0.0]]))


def test_a_penalty_of_one_row_leaves_the_others_alone() -> None:
    rows = LOGITS.repeat(2, 1)
    sample(rows, [sequence(presence_penalty=1.0, output=(0,)), sequence()])
    torch.testing.assert_close(rows[1], LOGITS)


def test_before_min_tokens_a_stop_token_is_never_drawn() -> None:
    rows = LOGITS.repeat(2, 1)
    sequences = [
        sequence(temperature=0.0, stop=(0, 1), output=(4,) * num_output, min_tokens=2, max_tokens=9)
        for num_output in (1, 2)
    ]
    assert sample(rows, sequences) == [2, 0]


def test_numbers_beyond_the_vocabulary_are_harmless() -> None:
    beyond = sequence(temperature=0.0, stop=(0, 2**32 - 1), min_tokens=2, max_tokens=9)
    assert sample(LOGITS.repeat(2, 1), [beyond, sequence(top_k=2**64 - 1, top_p=0.01)]) == [1, 0]


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**20))
def test_uniform_numbers_are_in_range_and_repeatable(seed: int, index: int) -> None:
    number = uniform(seed, index)
    assert 0.0 <= number < 1.0
    assert number == uniform(seed, index)


def test_uniform_numbers_are_even_over_seeds_and_draws() -> None:
    for numbers in ([uniform(seed, 0) for seed in range(4000)], [uniform(3, index) for index in range(4000)]):
        counts = Counter(math.floor(number * 10) for number in numbers)
        assert all(330 < counts[tenth] < 470 for tenth in range(10))


def test_a_token_without_weight_is_not_drawn_by_the_number_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.runner.sampler.uniform", lambda seed, index: 0.0)
    assert sample(torch.tensor([[float("-inf"), 0.0, 0.0]]), [sequence()]) == [1]


def test_the_last_weighted_token_is_drawn_when_rounding_reaches_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.runner.sampler.uniform", lambda seed, index: 1.0)
    logits = torch.tensor([[0.0, 0.0, float("-inf")]])
    assert sample(logits, [sequence()]) == [1]
    assert sample(logits, [sequence(top_p=0.99)]) == [1]
