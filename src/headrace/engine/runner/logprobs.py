"""Log probabilities of a step's rows, as the model itself gives them: before any rule of a request and any temperature.

Each row is worked out by itself, so that a request is told the same alone and in any batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from headrace.engine.runner.logit_rules import SequenceSampling
from headrace.engine.wire.messages import TokenLogprobs

_ROWS_AT_ONCE = 64
"""A prompt's rows are worked out in pieces: the logits of a whole prompt may take gigabytes."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a row is to tell, beside its own token: these ids, or else the most likely ones."""

    num_top: int
    token_ids: tuple[int, ...] = ()


class SampledLogprobs:
    """Of the rows that are drawn from. Made before the rules change the logits, read when the tokens are known."""

    def __init__(self, logits: Tensor, sequences: Sequence[SequenceSampling]) -> None:
        """`logits` [B, vocabulary], one row for each sequence; not changed and not kept."""
        self._rows = [row for row, sequence in enumerate(sequences) if sequence.params.wants_logprobs]
        self._wanted = [_wanted_of(sequences[row]) for row in self._rows]
        self._logprobs = torch.log_softmax(logits[self._rows].float(), dim=-1) if self._rows else None

    def __bool__(self) -> bool:
        """Whether any row is to tell something."""
        return self._logprobs is not None

    def told(self, token_ids: Sequence[int | None]) -> dict[int, TokenLogprobs]:
        """By row, given the token drawn for every row; what a row without one tells means nothing."""
        if self._logprobs is None:
            return {}
        drawn = [token_ids[row] or 0 for row in self._rows]
        return dict(zip(self._rows, _tell(self._logprobs, drawn, self._wanted), strict=True))


RowLogits: TypeAlias = Callable[[Tensor], Tensor]
"""Hidden states [N, hidden] to logits [N, vocabulary]."""


def prompt_logprobs(
    hidden: Tensor, next_token_ids: Sequence[int], *, num_top: int, logits_of: RowLogits
) -> tuple[TokenLogprobs, ...]:
    """Of the prompt tokens that follow the rows of `hidden` [N, hidden]; `next_token_ids` are those tokens."""
    told: list[TokenLogprobs] = []
    for start in range(0, len(next_token_ids), _ROWS_AT_ONCE):
        own_ids = next_token_ids[start : start + _ROWS_AT_ONCE]
        logits = logits_of(hidden[start : start + len(own_ids)])
        told += _tell(torch.log_softmax(logits.float(), dim=-1), own_ids, [Wanted(num_top)] * len(own_ids))
    return tuple(told)


def _wanted_of(sequence: SequenceSampling) -> Wanted:
    params = sequence.params
    if params.logprob_token_ids:
        return Wanted(0, tuple(params.logprob_token_ids))
    return Wanted(params.logprobs or 0)


def _tell(logprobs: Tensor, own_ids: Sequence[int], wanted: Sequence[Wanted]) -> list[TokenLogprobs]:
    """`logprobs` [N, vocabulary]; one entry for each row, whose own token is that of `own_ids`."""
    own = logprobs.gather(1, torch.tensor(own_ids, dtype=torch.int64, device=logprobs.device).unsqueeze(-1))
    ranks: list[int] = (logprobs >= own).sum(dim=-1).tolist()
    own_values: list[float] = own.squeeze(-1).tolist()
    others = _likeliest(logprobs, wanted)
    for row, want in enumerate(wanted):
        if want.token_ids:
            others[row] = (want.token_ids, tuple(logprobs[row, list(want.token_ids)].tolist()))
    return [
        TokenLogprobs(token_ids=(own_id, *token_ids), logprobs=(value, *values), rank=rank)
        for own_id, value, rank, (token_ids, values) in zip(own_ids, own_values, ranks, others, strict=True)
    ]


def _likeliest(logprobs: Tensor, wanted: Sequence[Wanted]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Token ids and log probabilities of as many as each row wants."""
    most = min(max(want.num_top for want in wanted), logprobs.shape[-1])
    values, token_ids = logprobs.topk(most, dim=-1)
    return [
        (tuple(row_ids[: want.num_top]), tuple(row_values[: want.num_top]))
        for want, row_ids, row_values in zip(wanted, token_ids.tolist(), values.tolist(), strict=True)
    ]
