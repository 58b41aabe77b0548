"""Turns a plan into a model's input: token ids, positions, cache addresses, and which rows are sampled. All numpy.

Rows of a step: requests that compute one token, longest context first, then the spans of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headrace.engine.core.step_plan import ScheduledRequest
from headrace.engine.kernels.paged_attention import KernelAttention, KernelKVCache, spans_of
from headrace.engine.models.forward_batch import AttentionStep, ForwardBatch
from headrace.engine.runner.attention import PagedAttention, StepParts, decode_groups, prefill_span
from headrace.engine.runner.paged_cache import IntArray, PagedKVCache
from headrace.engine.runner.sequence_table import RunningSequence, SequenceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A plan's requests in the order of their rows."""

    singles: Sequence[ScheduledRequest]
    """One token each, attended to together; longest context first."""
    spans: Sequence[ScheduledRequest]
    """Several tokens each, attended to one by one."""

    @property
    def all(self) -> list[ScheduledRequest]:
        return [*self.singles, *self.spans]

    @property
    def are_plain_decodes(self) -> bool:
        """One token of each request, from which the next is drawn."""
        return not self.spans and all(request.is_sampled and not request.num_foretold for request in self.singles)

    @property
    def sampled(self) -> list[ScheduledRequest]:
        return [request for request in self.all if request.is_sampled]


def order_rows(scheduled: Sequence[ScheduledRequest]) -> StepRows:
    singles = [request for request in scheduled if request.num_tokens == 1]
    singles.sort(key=lambda request: -request.start)
    return StepRows(singles=singles, spans=[request for request in scheduled if request.num_tokens > 1])


def sampled_row(request: ScheduledRequest) -> range:
    """The token whose hidden state yields the next one: the request's last, once it is reached. Those before it that
    foretell tokens of the prompt come with it."""
    return range(request.num_tokens - request.is_sampled - request.num_foretold, request.num_tokens)


def build_batch(
    rows: StepRows,
    sequences: SequenceTable,
    cache: PagedKVCache | KernelKVCache,
    *,
    dtype: torch.dtype,
    wanted_rows: Callable[[ScheduledRequest], range] = sampled_row,
) -> ForwardBatch:
    """The step's tensors on the cache's device; `dtype` is that of attention scores.

    `wanted_rows` says which of a request's tokens need their hidden state, counted from its first in this step.
    """
    requests = rows.all
    running = [sequences[request.request_id] for request in requests]
    token_ids, positions = _token_ids(rows, running), _positions(rows)
    attention: AttentionStep
    if isinstance(cache, KernelKVCache):
        attention = _kernel_attention(requests, running, sequences, cache)
    else:
        attention = _torch_attention(rows, running, positions, sequences, cache, dtype=dtype)
    return ForwardBatch(
        token_ids=torch.from_numpy(token_ids).to(cache.device),
        positions=torch.from_numpy(positions).to(cache.device),
        attention=attention,
        output_rows=_output_rows(rows, wanted_rows, cache.device),
    )


def decode_inputs(rows: StepRows, sequences: SequenceTable) -> tuple[IntArray, IntArray, IntArray]:
    """Of a step without spans: token ids [B], positions [B] and block tables [B, blocks]."""
    assert not rows.spans
    running = [sequences[request.request_id] for request in rows.singles]
    tables = sequences.blocks[[sequence.row for sequence in running]]
    return _token_ids(rows, running), _positions(rows), tables


def _token_ids(rows: StepRows, running: Sequence[RunningSequence]) -> IntArray:
    num_singles = len(rows.singles)
    singles = [sequence.token(r.start) for r, sequence in zip(rows.singles, running[:num_singles], strict=True)]
    spans = zip(rows.spans, running[num_singles:], strict=True)
    return _join(singles, [sequence.span(r.start, r.num_tokens) for r, sequence in spans])


def _positions(rows: StepRows) -> IntArray:
    spans = [np.arange(request.start, request.start + request.num_tokens) for request in rows.spans]
    return _join([request.start for request in rows.singles], spans)


def _kernel_attention(
    requests: Sequence[ScheduledRequest],
    running: Sequence[RunningSequence],
    sequences: SequenceTable,
    cache: KernelKVCache,
) -> KernelAttention:
    spans = spans_of(
        sequences.blocks,
        table_rows=[sequence.row for sequence in running],
        num_tokens=[request.num_tokens for request in requests],
        starts=[request.start for request in requests],
    )
    return KernelAttention(cache=cache, spans=spans, tables=sequences.blocks)


def _torch_attention(
    rows: StepRows,
    running: Sequence[RunningSequence],
    positions: IntArray,
    sequences: SequenceTable,
    cache: PagedKVCache,
    *,
    dtype: torch.dtype,
) -> PagedAttention:
    tables = sequences.blocks[[sequence.row for sequence in running]]

    def parts(window: int | None) -> StepParts:
        return _step_parts(rows, tables, positions, cache, dtype=dtype, window=window)

    whole = parts(None)
    return PagedAttention(
        cache,
        store_rows=cache.row_index(_slots(rows, tables, positions, cache)),
        groups=whole.groups,
        spans=whole.spans,
        windowed={window: parts(window) for window in set(cache.layer_windows) if window is not None},
    )


def _slots(rows: StepRows, tables: IntArray, positions: IntArray, cache: PagedKVCache) -> IntArray:
    """Where the step's keys and values go. `tables` are those of its requests [R, blocks]."""
    block_of, slot_in_block = np.divmod(positions, cache.block_size)
    request_of = np.repeat(np.arange(len(tables)), [request.num_tokens for request in rows.all])
    return tables[request_of, block_of] * cache.block_size + slot_in_block


def _step_parts(
    rows: StepRows,
    tables: IntArray,
    positions: IntArray,
    cache: PagedKVCache,
    *,
    dtype: torch.dtype,
    window: int | None,
) -> StepParts:
    num_singles = len(rows.singles)
    groups = decode_groups(cache, tables[:num_singles], positions[:num_singles] + 1, dtype=dtype, window=window)
    spans = []
    first_row = num_singles
    for request, table in zip(rows.spans, tables[num_singles:], strict=True):
        start, num_tokens = request.start, request.num_tokens
        spans.append(prefill_span(cache, table, first_row=first_row, start=start, num_tokens=num_tokens, window=window))
        first_row += num_tokens
    return StepParts(groups=groups, spans=spans)


def _output_rows(
    rows: StepRows, wanted_rows: Callable[[ScheduledRequest], range], device: torch.device
) -> torch.Tensor | None:
    """The step's rows that are wanted, in order; None where those are all rows."""
    if not rows.spans and all(len(wanted_rows(request)) == 1 for request in rows.singles):
        return None
    wanted: list[int] = []
    start = 0
    for request in (*rows.singles, *rows.spans):
        wanted += [start + offset for offset in wanted_rows(request)]
        start += request.num_tokens
    return torch.tensor(wanted, dtype=torch.int64, device=device)


def _join(singles: Sequence[int], spans: Sequence[IntArray]) -> IntArray:
    """The numbers of all rows: one for each of `singles`, then those of the spans."""
    arrays = [np.array(singles, dtype=np.int64), *spans] if singles else list(spans)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
