"""Attention by our kernels equals plain torch's over the same blocks, for any mix of decodes and prefills."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.engine.kernels.library import CpuKernels
from headrace.engine.kernels.paged_attention import KernelAttention, KernelKVCache, cache_fits_kernels, spans_of
from headrace.engine.model_config import ModelConfig
from headrace.testing.model_shapes import SMALLEST_MODEL

MAX_BLOCKS = 80


def config(*, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None) -> ModelConfig:
    return replace(
        SMALLEST_MODEL,
        max_model_len=2048,
        hidden_size=32,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layer_windows=(window,),
    )


@dataclass(slots=True, kw_only=True)
class Sequence:
    """Tokens computed before, tokens of this step, and all their queries, keys and values."""

    before: int
    q: Tensor
    k: Tensor
    v: Tensor

    def expected(self, window: int | None) -> Tensor:
        """One token and head at a time, in double precision."""
        num_new, num_heads, head_dim = self.q.shape
        group = num_heads // self.k.shape[1]
        out = torch.empty(num_new, num_heads, head_dim, dtype=torch.float64)
        for token in range(num_new):
            end = self.before + token + 1
            begin = 0 if window is None else max(0, end - window)
            k, v = self.k[begin:end].double(), self.v[begin:end].double()
            for head in range(num_heads):
                scores = k[:, head // group] @ self.q[token, head].double() * head_dim**-0.5
                out[token, head] = scores.softmax(dim=0) @ v[:, head // group]
        return out.reshape(num_new, -1)


def make_sequence(
    before: int, new: int, shape: ModelConfig, generator: torch.Generator, dtype: torch.dtype
) -> Sequence:
    def draw(length: int, heads: int) -> Tensor:
        return torch.randn(length, heads, shape.head_dim, generator=generator).to(dtype)

    length = before + new
    k, v = draw(length, shape.num_kv_heads), draw(length, shape.num_kv_heads)
    return Sequence(before=before, q=draw(new, shape.num_heads), k=k, v=v)


def make_cache(kernels: CpuKernels, shape: ModelConfig, *, block_size: int, dtype: torch.dtype) -> KernelKVCache:
    return KernelKVCache(kernels, shape, num_blocks=MAX_BLOCKS, block_size=block_size, dtype=dtype)


def attend(cache: KernelKVCache, sequences: list[Sequence], tables: np.ndarray) -> Tensor:
    """Store what came before, then run the step."""

    def step(starts: list[int], lengths: list[int]) -> KernelAttention:
        spans = spans_of(tables, table_rows=range(len(sequences)), num_tokens=lengths, starts=starts)
        return KernelAttention(cache=cache, spans=spans, tables=tables)

    before = [s.before for s in sequences]
    earlier = step([0] * len(sequences), before)
    k, v = (torch.cat([getattr(s, name)[: s.before] for s in sequences]) for name in "kv")
    cache.kernels.store(cache.shape, cache.layers[0], torch.from_numpy(earlier.spans), k, v)
    return step(before, [len(s.q) for s in sequences]).attend(
        0,
        torch.cat([s.q for s in sequences]),
        torch.cat([s.k[s.before :] for s in sequences]),
        torch.cat([s.v[s.before :] for s in sequences]),
    )


def scattered_tables(num_sequences: int, *, seed: int) -> np.ndarray:
    blocks_each = MAX_BLOCKS // num_sequences
    blocks = np.random.default_rng(seed).permutation(MAX_BLOCKS)[: num_sequences * blocks_each]
    return np.ascontiguousarray(blocks.reshape(num_sequences, blocks_each))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=4),
    heads=st.sampled_from([(6, 2), (4, 4), (7, 1)]),
    head_dim=st.sampled_from([16, 48, 64, 80]),
    block_size=st.sampled_from([16, 32]),
    window=st.sampled_from([None, 1, 20, 33]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_a_steps_attention_equals_each_sequence_alone(
    kernels: CpuKernels,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    shape = config(num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, window=window)
    generator = torch.Generator().manual_seed(seed)
    sequences = [make_sequence(before, new, shape, generator, dtype) for before, new in lengths]
    cache = make_cache(kernels, shape, block_size=block_size, dtype=dtype)
    actual = attend(cache, sequences, scattered_tables(len(sequences), seed=seed))
    expected = torch.cat([sequence.expected(window) for sequence in sequences])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 300])
def test_a_context_of_several_chunks_is_summed_up_right(
    kernels: CpuKernels, dtype: torch.dtype, window: int | None
) -> None:
    shape = config(num_heads=4, num_kv_heads=2, head_dim=32, window=window)
    sequence = make_sequence(1200, 3, shape, torch.Generator().manual_seed(5), dtype)
    sequence.k[700:] *= 4  # later scores are larger: what was summed before must shrink
    actual = attend(make_cache(kernels, shape, block_size=16, dtype=dtype), [sequence], scattered_tables(1, seed=2))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.double(), sequence.expected(window), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 600])
def test_a_tokens_bits_do_not_depend_on_how_its_prompt_is_chunked(kernels: CpuKernels, window: int | None) -> None:
    shape = config(num_heads=6, num_kv_heads=2, head_dim=16, window=window)
    whole = make_sequence(600, 60, shape, torch.Generator().manual_seed(1), torch.float32)
    tables = scattered_tables(1, seed=3)
    together = attend(make_cache(kernels, shape, block_size=16, dtype=torch.float32), [whole], tables)
    for first, count in ((0, 1), (17, 1), (30, 7), (59, 1)):
        end = 600 + first + count
        part = Sequence(before=600 + first, q=whole.q[first : first + count], k=whole.k[:end], v=whole.v[:end])
        cache = make_cache(kernels, shape, block_size=16, dtype=torch.float32)
        assert torch.equal(attend(cache, [part], tables), together[first : first + count])


def test_what_the_layout_cannot_hold_is_told_before() -> None:
    shape = config(num_heads=2, num_kv_heads=2, head_dim=16, window=None)
    assert cache_fits_kernels(shape, block_size=32, dtype=torch.bfloat16)
    assert not cache_fits_kernels(shape, block_size=8, dtype=torch.bfloat16)
    assert not cache_fits_kernels(shape, block_size=16, dtype=torch.float16)
    odd = config(num_heads=2, num_kv_heads=2, head_dim=24, window=None)
    assert not cache_fits_kernels(odd, block_size=16, dtype=torch.float32)
