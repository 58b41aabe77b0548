"""Draws the next token of each sequence from its logits. Knows neither models nor schedules.

Every draw takes one uniform number, made from the request's seed and the count of its tokens so far, and looks it up
in the cumulated probabilities of its own row. So a request draws the same tokens alone, in any batch, and after a
preemption, on any device, as far as its logits are the same.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from headrace.engine.runner.logit_rules import SequenceSampling, apply_rules
from headrace.engine.sampling_params import SamplingParams

_MASK_64 = 2**64 - 1

_NO_LIMIT = 2**62

_NUM_CANDIDATES = 256
"""Sorting a vocabulary of 150,000 takes longer than a small model's step; its 256 most likely tokens are found sooner,
and nearly always hold all that top_k and top_p leave."""


def sample(logits: Tensor, sequences: Sequence[SequenceSampling]) -> list[int | None]:
    """One token for each row of `logits` [B, vocabulary], which rules change in place. Appends to no sequence.

    None for a row that its rules leave without any token.
    """
    empty_rows = apply_rules(logits, sequences)
    token_ids: list[int | None] = [*_most_likely(logits)]
    random_rows = [row for row, sequence in enumerate(sequences) if not sequence.params.is_greedy]
    if empty_rows:
        random_rows = [row for row in random_rows if row not in empty_rows]
        for row in empty_rows:
            token_ids[row] = None
    for is_cut in (False, True):
        rows = [row for row in random_rows if _needs_order(sequences[row].params) is is_cut]
        if rows:
            draw = _draw_from_cut if is_cut else _draw
            chosen = logits if len(rows) == len(sequences) else logits[rows]
            for row, token_id in zip(rows, draw(chosen, [sequences[row] for row in rows]), strict=True):
                token_ids[row] = token_id
    return token_ids


def _most_likely(logits: Tensor) -> list[int]:
    """The place of each row's largest logit. On a CPU numpy finds it ten times faster than torch."""
    if logits.device.type == "cpu":
        return cast("list[int]", logits.numpy().argmax(axis=-1).tolist())
    return cast("list[int]", logits.argmax(dim=-1).tolist())


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the `index`-th draw of `seed`: the SplitMix64 generator, entered at any point."""
    state = _mix(seed & _MASK_64)
    return (_mix((state + index * 0x9E3779B97F4A7C15) & _MASK_64) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def _needs_order(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0


def _draw(logits: Tensor, sequences: Sequence[SequenceSampling]) -> list[int]:
    """Rows that only min_p may cut: no sorting."""
    picks: list[int] = _look_up(_probabilities(logits, sequences), sequences).squeeze(-1).tolist()
    return picks


def _draw_from_cut(logits: Tensor, sequences: Sequence[SequenceSampling]) -> list[int]:
    """Rows cut by top_k, then by top_p: among their most likely tokens where those decide, else among all, sorted."""
    probabilities = _probabilities(logits, sequences)
    totals = probabilities.sum(dim=-1, keepdim=True)
    candidates, token_ids = probabilities.topk(min(_NUM_CANDIDATES, probabilities.shape[-1]))
    picks: list[int] = _pick_from_sorted(candidates, token_ids, totals, sequences)
    undecided = _undecided_rows(candidates, totals, sequences)
    if undecided:
        weights, token_ids = probabilities[undecided].sort(dim=-1, descending=True)
        rest = _pick_from_sorted(weights, token_ids, totals[undecided], [sequences[row] for row in undecided])
        for row, token_id in zip(undecided, rest, strict=True):
            picks[row] = token_id
    return picks


def _undecided_rows(candidates: Tensor, totals: Tensor, sequences: Sequence[SequenceSampling]) -> list[int]:
    """Rows whose cuts may leave tokens beyond the candidates."""
    top_p = _column([s.params.top_p for s in sequences], totals)
    reached = (candidates.sum(dim=-1, keepdim=True) >= top_p * totals).squeeze(-1).tolist()
    return [
        row
        for row, sequence in enumerate(sequences)
        if sequence.params.top_k > _NUM_CANDIDATES or (sequence.params.top_k == 0 and not reached[row])
    ]


def _pick_from_sorted(
    weights: Tensor, token_ids: Tensor, totals: Tensor, sequences: Sequence[SequenceSampling]
) -> list[int]:
    """Tokens drawn from rows of falling weights after both cuts; `totals` [B, 1] are the sums of the whole rows."""
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    top_k = _column([min(s.params.top_k or _NO_LIMIT, _NO_LIMIT) for s in sequences], weights, dtype=torch.int64)
    weights = weights.masked_fill(ranks >= top_k, 0.0)
    totals = torch.where(top_k < _NO_LIMIT, weights.sum(dim=-1, keepdim=True), totals)
    top_p = _column([s.params.top_p for s in sequences], weights)
    before = weights.cumsum(dim=-1) - weights
    # A token stays if those before it do not reach top_p; the first always stays, and top_p = 1 cuts nothing.
    is_cut = (before >= top_p * totals) & (ranks > 0) & (top_p < 1.0)
    places = _look_up(weights.masked_fill(is_cut, 0.0), sequences)
    picks: list[int] = token_ids.gather(1, places).squeeze(-1).tolist()
    return picks


def _probabilities(logits: Tensor, sequences: Sequence[SequenceSampling]) -> Tensor:
    """Softmax at each row's temperature, as doubles for the sums that follow; min_p applied, sum left."""
    temperatures = _column([s.params.temperature for s in sequences], logits, dtype=logits.dtype)
    probabilities = torch.softmax(logits / temperatures, dim=-1).double()
    if any(s.params.min_p > 0.0 for s in sequences):
        floor = _column([s.params.min_p for s in sequences], logits) * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    return probabilities


def _look_up(weights: Tensor, sequences: Sequence[SequenceSampling]) -> Tensor:
    """The place [B, 1] of each row's uniform number among its cumulated weights; never one of weight 0."""
    cumulated = weights.cumsum(dim=-1)
    numbers = _column([uniform(s.seed, len(s.output_token_ids)) for s in sequences], weights)
    places = torch.searchsorted(cumulated, numbers * cumulated[:, -1:], right=True)
    places.clamp_(max=weights.shape[-1] - 1)
    if bool((weights.gather(1, places) == 0.0).any()):  # rounding has reached past the last one, which is rare
        places = torch.minimum(places, (weights > 0).long().cumsum(dim=-1).argmax(dim=-1, keepdim=True))
    return places


def _column(values: Sequence[float], like: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(-1)
