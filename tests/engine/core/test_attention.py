"""Padded, grouped and chunked attention over scattered blocks equals attention over each sequence alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.runner.attention import PagedAttention, decode_groups, group_ends, prefill_span
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.testing.model_shapes import SMALLEST_MODEL

CONFIG = replace(SMALLEST_MODEL, hidden_size=32, num_heads=6, num_kv_heads=2)
BLOCK_SIZE = 4
NUM_BLOCKS = 64


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of the last len(q) tokens over the whole context, one head and one token at a time."""
    num_new, num_heads, head_dim = q.shape
    out = torch.empty(num_new, num_heads, head_dim)
    for token in range(num_new):
        seen = len(k) - num_new + token + 1
        for head in range(num_heads):
            kv_head = head // (num_heads // k.shape[1])
            weights = (k[:seen, kv_head] @ q[token, head] * head_dim**-0.5).softmax(dim=0)
            out[token, head] = weights @ v[:seen, kv_head]
    return out.reshape(num_new, -1)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=5),
    num_kv_heads=st.sampled_from([1, 2, 6]),
    seed=st.integers(0, 1000),
)
def test_a_steps_attention_equals_each_sequence_alone(
    lengths: list[tuple[int, int]], num_kv_heads: int, seed: int
) -> None:
    """Each sequence: tokens computed before, and tokens of this step."""
    lengths.sort(key=lambda pair: (pair[1] > 1, -pair[0]))
    generator = torch.Generator().manual_seed(seed)
    cache = PagedKVCache(
        replace(CONFIG, num_kv_heads=num_kv_heads),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    tables = np.random.default_rng(seed).permutation(NUM_BLOCKS)[: len(lengths) * 8].reshape(len(lengths), 8)
    keys = [torch.randn(before + new, num_kv_heads, 8, generator=generator) for before, new in lengths]
    values = [torch.randn(before + new, num_kv_heads, 8, generator=generator) for before, new in lengths]
    queries = [torch.randn(new, 6, 8, generator=generator) for _, new in lengths]

    def slots(index: int, start: int, stop: int) -> np.ndarray:
        positions = np.arange(start, stop)
        return np.asarray(tables[index][positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)

    for index, (before, _) in enumerate(lengths):
        if before:
            rows = cache.row_index(slots(index, 0, before))
            cache.store(0, rows, keys[index][:before], values[index][:before])
    num_singles = sum(new == 1 for _, new in lengths)
    contexts = np.array([before + 1 for before, _ in lengths[:num_singles]], dtype=np.int64)
    spans, row = [], num_singles
    for index, (before, new) in list(enumerate(lengths))[num_singles:]:
        spans.append(prefill_span(cache, tables[index], first_row=row, start=before, num_tokens=new))
        row += new
    step = PagedAttention(
        cache,
        store_rows=cache.row_index(np.concatenate([slots(i, b, b + n) for i, (b, n) in enumerate(lengths)])),
        groups=decode_groups(cache, tables[:num_singles], contexts, dtype=torch.float32),
        spans=spans,
    )
    out = step.attend(
        0,
        torch.cat(queries),
        torch.cat([k[before:] for k, (before, _) in zip(keys, lengths, strict=True)]),
        torch.cat([v[before:] for v, (before, _) in zip(values, lengths, strict=True)]),
    )
    expected = torch.cat([reference(q, k, v) for q, k, v in zip(queries, keys, values, strict=True)])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(1, 20000), max_size=40).map(lambda lengths: sorted(lengths, reverse=True)))
def test_groups_cover_all_sequences_and_bound_their_padding(lengths: list[int]) -> None:
    ends = group_ends(lengths)
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(lengths)
    for start, end in zip([0, *ends], ends, strict=False):
        padded = lengths[start] * (end - start)
        assert padded <= max(4096, 2 * sum(lengths[start:end])) + lengths[start]


@pytest.mark.parametrize(
    ("lengths", "ends"),
    [([], []), ([5], [1]), ([100, 90, 3], [3]), ([16000, 10, 9], [1, 3]), ([16000, 9000, 7000], [2, 3])],
)
def test_a_long_context_does_not_pad_short_ones(lengths: list[int], ends: list[int]) -> None:
    assert group_ends(lengths) == ends
