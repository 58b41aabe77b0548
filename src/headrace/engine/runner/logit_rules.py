"""What a request's rules do to its row of logits before a token is drawn, in vLLM's order: the grammar's mask, allowed
ids, bad words, `min_tokens`, `logit_bias`, and the three penalties. Every rule changes its own row in place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headrace.engine.sampling_params import SamplingParams

_FORBIDDEN = float("-inf")


@dataclass(slots=True, kw_only=True)
class SequenceSampling:
    """What the sampler must know of one sequence; `append` tells it of each drawn token."""

    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int] = field(default_factory=list)
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The token ids of each bad word, in every way that it is written."""
    grammar_mask: bytes | None = None
    """One bit for each token id, the lowest of the first byte being id 0: what may come next. None allows everything.

    Set anew for each step."""
    is_plain: bool = field(init=False)
    """Whether no rule can ever apply to it but the grammar's, so that its row needs no look."""
    _counts: Counter[int] = field(init=False, default_factory=Counter)
    """How often each token was generated; kept for penalties alone."""

    def __post_init__(self) -> None:
        params = self.params
        has_rule = params.min_tokens or params.logit_bias or params.allowed_token_ids or self.bad_words
        self.is_plain = not (has_rule or self.has_penalty)
        if self.has_penalty:
            self._counts.update(self.output_token_ids)

    @property
    def has_penalty(self) -> bool:
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)

    @property
    def must_go_on(self) -> bool:
        """Whether `min_tokens` still forbids the tokens that would end the request."""
        return len(self.output_token_ids) < self.params.min_tokens

    @property
    def counts(self) -> Counter[int]:
        """Of generated tokens, where a penalty needs them."""
        return self._counts

    def append(self, token_id: int) -> None:
        self.output_token_ids.append(token_id)
        if not self.is_plain and self.has_penalty:
            self._counts[token_id] += 1


def apply_rules(logits: Tensor, sequences: Sequence[SequenceSampling]) -> list[int]:
    """Change the rows of `logits` [B, vocabulary] in place. Returns the rows that are left without any token."""
    empty = []
    for row, sequence in enumerate(sequences):
        if sequence.is_plain and sequence.grammar_mask is None:
            continue
        if not _apply(logits[row], sequence):
            empty.append(row)
    return empty


def _apply(row: Tensor, sequence: SequenceSampling) -> bool:
    """False when no token is left."""
    params = sequence.params
    if sequence.grammar_mask is not None:
        row.masked_fill_(_forbidden(sequence.grammar_mask, row), _FORBIDDEN)
    if params.allowed_token_ids is not None:
        _allow_only(row, params.allowed_token_ids)
    if sequence.bad_words:
        _forbid_bad_words(row, sequence)
    if sequence.must_go_on:
        _forbid_ends(row, sequence)
    if params.logit_bias:
        _add_bias(row, params.logit_bias)
    if sequence.has_penalty:
        _penalize(row, sequence)
    return bool(row.max() > _FORBIDDEN)


def _forbidden(mask: bytes, row: Tensor) -> Tensor:
    """True for each id of the row whose bit is not set; ids beyond the mask are forbidden."""
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little", count=len(row))
    return torch.from_numpy(bits == 0).to(row.device)


def _allow_only(row: Tensor, allowed_token_ids: Sequence[int]) -> None:
    allowed = torch.tensor(allowed_token_ids, dtype=torch.int64, device=row.device)
    kept = row[allowed]
    row.fill_(_FORBIDDEN)
    row[allowed] = kept


def _forbid_bad_words(row: Tensor, sequence: SequenceSampling) -> None:
    """The last token of a bad word is forbidden where the answer ends with those before it."""
    output = sequence.output_token_ids
    last_ids = [
        word[-1] for word in sequence.bad_words if len(word) == 1 or tuple(output[-(len(word) - 1) :]) == word[:-1]
    ]
    if last_ids:
        row[last_ids] = _FORBIDDEN


def _forbid_ends(row: Tensor, sequence: SequenceSampling) -> None:
    """Unless nothing else is left: a grammar that is complete ends an answer that should be longer."""
    before = row.clone()
    row[[stop for stop in sequence.stop_token_ids if stop < len(row)]] = _FORBIDDEN
    if sequence.grammar_mask is not None and bool(row.max() == _FORBIDDEN):
        row.copy_(before)


def _add_bias(row: Tensor, logit_bias: dict[int, float]) -> None:
    token_ids = torch.tensor(list(logit_bias), dtype=torch.int64, device=row.device)
    row[token_ids] += torch.tensor(list(logit_bias.values()), dtype=row.dtype, device=row.device)


def _penalize(row: Tensor, sequence: SequenceSampling) -> None:
    """Repetition penalty on tokens of prompt and answer, the two others on those of the answer."""
    params, counts = sequence.params, sequence.counts
    if params.repetition_penalty != 1.0:
        token_ids = list({*sequence.prompt_token_ids, *counts})
        seen = torch.tensor(token_ids, dtype=torch.int64, device=row.device)
        scores, factor = row[seen], params.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / factor, scores * factor)
    if counts and (params.presence_penalty or params.frequency_penalty):
        drawn = torch.tensor(list(counts), dtype=torch.int64, device=row.device)
        times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[drawn] -= params.frequency_penalty * times + params.presence_penalty
