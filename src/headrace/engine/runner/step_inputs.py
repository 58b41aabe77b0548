"""Turns a plan into a model's input: token ids, positions, cache addresses, and which rows are sampled. All numpy.

Rows of a step: requests that compute one token, longest context first, then the spans of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from headrace.engine.models.forward_batch import ForwardBatch
from headrace.engine.runner.attention import PagedAttention, PrefillSpan, decode_groups, prefill_span
from headrace.engine.runner.paged_cache import IntArray, PagedKVCache
from headrace.engine.runner.sequence_table import SequenceTable
from headrace.engine.step_plan import ScheduledRequest

_Inputs: TypeAlias = tuple[IntArray, IntArray, IntArray]
"""Token ids, positions and cache slots of neighbouring rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A plan's requests in the order of their rows."""

    singles: Sequence[ScheduledRequest]
    """One token each, attended to together; longest context first."""
    spans: Sequence[ScheduledRequest]
    """Several tokens each, attended to one by one."""

    @property
    def sampled(self) -> list[ScheduledRequest]:
        return [request for request in (*self.singles, *self.spans) if request.is_sampled]


def order_rows(scheduled: Sequence[ScheduledRequest]) -> StepRows:
    singles = [request for request in scheduled if request.num_tokens == 1]
    singles.sort(key=lambda request: -request.start)
    return StepRows(singles=singles, spans=[request for request in scheduled if request.num_tokens > 1])


def build_batch(rows: StepRows, sequences: SequenceTable, cache: PagedKVCache, *, dtype: torch.dtype) -> ForwardBatch:
    """The step's tensors on the cache's device; `dtype` is that of attention scores."""
    parts = [_single_inputs(rows.singles, sequences, cache)] if rows.singles else []
    parts += [_span_inputs(request, sequences, cache) for request in rows.spans]
    token_ids, positions, slots = (_join(arrays) for arrays in zip(*parts, strict=True))
    return ForwardBatch(
        token_ids=torch.from_numpy(token_ids).to(cache.device),
        positions=torch.from_numpy(positions).to(cache.device),
        attention=PagedAttention(
            cache,
            store_rows=cache.row_index(slots),
            groups=decode_groups(
                cache, _tables(rows.singles, sequences), positions[: len(rows.singles)] + 1, dtype=dtype
            ),
            spans=_prefill_spans(rows, sequences, cache),
        ),
        output_rows=_sampled_rows(rows, cache.device),
    )


def _single_inputs(requests: Sequence[ScheduledRequest], sequences: SequenceTable, cache: PagedKVCache) -> _Inputs:
    token_ids = np.array([sequences[r.request_id].token(r.start) for r in requests], dtype=np.int64)
    positions = np.array([r.start for r in requests], dtype=np.int64)
    block_of, slot_in_block = np.divmod(positions, cache.block_size)
    blocks = sequences.blocks[_table_rows(requests, sequences), block_of]
    return token_ids, positions, blocks * cache.block_size + slot_in_block


def _span_inputs(request: ScheduledRequest, sequences: SequenceTable, cache: PagedKVCache) -> _Inputs:
    sequence = sequences[request.request_id]
    positions = np.arange(request.start, request.start + request.num_tokens)
    block_of, slot_in_block = np.divmod(positions, cache.block_size)
    slots = sequences.blocks[sequence.row, block_of] * cache.block_size + slot_in_block
    return sequence.span(request.start, request.num_tokens), positions, slots


def _prefill_spans(rows: StepRows, sequences: SequenceTable, cache: PagedKVCache) -> list[PrefillSpan]:
    spans = []
    first_row = len(rows.singles)
    for request in rows.spans:
        table = sequences.blocks[sequences[request.request_id].row]
        spans.append(
            prefill_span(cache, table, first_row=first_row, start=request.start, num_tokens=request.num_tokens)
        )
        first_row += request.num_tokens
    return spans


def _sampled_rows(rows: StepRows, device: torch.device) -> torch.Tensor | None:
    """The last row of each request that is sampled; None where those are all rows."""
    if not rows.spans and all(request.is_sampled for request in rows.singles):
        return None
    sampled = []
    end = 0
    for request in (*rows.singles, *rows.spans):
        end += request.num_tokens
        if request.is_sampled:
            sampled.append(end - 1)
    return torch.tensor(sampled, dtype=torch.int64, device=device)


def _tables(requests: Sequence[ScheduledRequest], sequences: SequenceTable) -> IntArray:
    return sequences.blocks[_table_rows(requests, sequences)]


def _table_rows(requests: Sequence[ScheduledRequest], sequences: SequenceTable) -> IntArray:
    return np.array([sequences[request.request_id].row for request in requests], dtype=np.int64)


def _join(arrays: Sequence[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
