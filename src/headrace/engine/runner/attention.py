"""Attention of one step by plain torch over the paged cache: decodes batched and padded, prefills one by one.

Decodes use batched products: on a CPU, SDPA at query length 1 with grouped heads is several times slower.
Suffixes of tensors: t tokens of the step, b sequences, h query heads, k key-value heads, d head size, s context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.runner.paged_cache import IntArray, PagedKVCache

_SMALL_GROUP_SLOTS = 4096
"""Padding up to this many slots costs less than the dozen torch calls per layer of one more group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Neighbouring tokens of the step, one per sequence, whose contexts are of similar length."""

    start: int
    stop: int
    block_index: Tensor
    """[K, B, blocks]"""
    context_len: int
    """Of the longest; the others are masked."""
    mask_kb1s: Tensor | None
    """Added to the scores: 0 inside a sequence's context, minus infinity in its padding. None without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpan:
    """Neighbouring tokens of one sequence."""

    start: int
    stop: int
    block_index: Tensor
    """[K, 1, blocks]"""
    context_len: int
    """Tokens before the span and in it."""
    mask_ts: Tensor | None
    """True where a token may look; None if the span is the whole context, where plain causality does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The rows of a step, cut up for attention."""

    groups: Sequence[DecodeGroup]
    spans: Sequence[PrefillSpan]


_NO_WINDOWS: Mapping[int, StepParts] = MappingProxyType({})


class PagedAttention:
    """One step's attention; see `AttentionStep`. `windowed` are the parts for layers with a window, by its size."""

    def __init__(
        self,
        cache: PagedKVCache,
        *,
        store_rows: Tensor,
        groups: Sequence[DecodeGroup],
        spans: Sequence[PrefillSpan],
        windowed: Mapping[int, StepParts] = _NO_WINDOWS,
    ) -> None:
        self._cache = cache
        self._store_rows = store_rows
        self._whole = StepParts(groups=groups, spans=spans)
        self._windowed = windowed
        self._scale = cache.head_dim**-0.5

    def attend(self, layer: int, q_thd: Tensor, k_tkd: Tensor, v_tkd: Tensor) -> Tensor:
        self._cache.store(layer, self._store_rows, k_tkd, v_tkd)
        window = self._cache.layer_windows[layer]
        step = self._whole if window is None else self._windowed[window]
        parts = [self._decode(layer, group, q_thd[group.start : group.stop]) for group in step.groups]
        parts += [self._prefill(layer, span, q_thd[span.start : span.stop]) for span in step.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, group: DecodeGroup, q_bhd: Tensor) -> Tensor:
        keys, values = self._cache.gather(layer, group.block_index)
        batch, num_heads, head_dim = q_bhd.shape
        num_kv_heads = self._cache.num_kv_heads
        q = q_bhd.view(batch, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(num_kv_heads * batch, -1, head_dim)
        if group.mask_kb1s is None:
            keys, values = keys[:, : group.context_len], values[:, : group.context_len]
            scores = torch.bmm(q * self._scale, keys.transpose(1, 2))
        else:
            scores = torch.baddbmm(group.mask_kb1s, q, keys.transpose(1, 2), alpha=self._scale)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.bmm(weights, values).view(num_kv_heads, batch, -1, head_dim)
        return out.transpose(0, 1).reshape(batch, num_heads * head_dim)

    def _prefill(self, layer: int, span: PrefillSpan, q_thd: Tensor) -> Tensor:
        keys, values = self._cache.gather(layer, span.block_index)
        attended = functional.scaled_dot_product_attention(
            q_thd.transpose(0, 1).unsqueeze(0),
            keys[:, : span.context_len].unsqueeze(0),
            values[:, : span.context_len].unsqueeze(0),
            attn_mask=span.mask_ts,
            is_causal=span.mask_ts is None,
            enable_gqa=True,
        )
        return attended.squeeze(0).transpose(0, 1).reshape(q_thd.shape[0], -1)


def decode_groups(
    cache: PagedKVCache, tables: IntArray, context_lens: IntArray, *, dtype: torch.dtype, window: int | None = None
) -> list[DecodeGroup]:
    """Groups of the sequences with block tables [B, blocks] and context lengths [B], which fall from first to last.

    Of each only the last `window` tokens are attended to, where that is given.
    """
    groups = []
    start = 0
    for stop in group_ends(context_lens.tolist()):
        lens = context_lens[start:stop]
        longest = int(lens[0])
        num_blocks = -(-longest // cache.block_size)
        # One sequence is cut to its length instead of masked.
        is_whole = len(lens) == 1 and (window is None or longest <= window)
        num_slots = num_blocks * cache.block_size
        groups.append(
            DecodeGroup(
                start=start,
                stop=stop,
                block_index=cache.block_index(tables[start:stop, :num_blocks]),
                context_len=longest,
                mask_kb1s=None if is_whole else decode_mask(lens, num_slots, cache, dtype, window),
            )
        )
        start = stop
    return groups


def group_ends(context_lens: Sequence[int]) -> list[int]:
    """Where to cut sequences of falling length: padding at most doubles the work of a part, unless that is small."""
    ends = []
    start = 0
    for index, length in enumerate(context_lens):
        longest = context_lens[start]
        if length * 2 < longest and longest * (index + 1 - start) > _SMALL_GROUP_SLOTS:
            ends.append(index)
            start = index
    if context_lens:
        ends.append(len(context_lens))
    return ends


def prefill_span(
    cache: PagedKVCache,
    table: IntArray,
    *,
    first_row: int,
    start: int,
    num_tokens: int,
    window: int | None = None,
) -> PrefillSpan:
    """The span of a sequence's tokens `start ... start + num_tokens - 1`, which are the step's from `first_row` on.

    A token looks at itself and those before it, at the last `window` of them where that is given.
    """
    context_len = start + num_tokens
    mask = None
    if start > 0 or (window is not None and window < context_len):
        seen, tokens = np.arange(context_len)[None, :], np.arange(start, context_len)[:, None]
        may_look = seen <= tokens
        if window is not None:
            may_look &= seen > tokens - window
        mask = torch.from_numpy(may_look).to(cache.device)
    return PrefillSpan(
        start=first_row,
        stop=first_row + num_tokens,
        block_index=cache.block_index(table[None, : -(-context_len // cache.block_size)]),
        context_len=context_len,
        mask_ts=mask,
    )


def decode_mask(
    context_lens: IntArray, num_slots: int, cache: PagedKVCache, dtype: torch.dtype, window: int | None
) -> Tensor:
    """`DecodeGroup.mask_kb1s` of sequences of these lengths: hides the padding, and what lies before the window."""
    slots = np.arange(num_slots)[None, :]
    hidden = slots >= context_lens[:, None]
    if window is not None:
        hidden |= slots < context_lens[:, None] - window
    mask = np.where(hidden, np.float32("-inf"), np.float32(0.0))
    stacked = np.tile(mask[:, None, :], (cache.num_kv_heads, 1, 1))
    return torch.from_numpy(stacked).to(device=cache.device, dtype=dtype)
