"""The KV cache in the layout of our kernels, and one step's attention over it. Blocks are those of `kv_cache`.

A layer's block holds, for each key-value head, its keys and then its values in tiles of 16 tokens; csrc/attention.h
says how. So blocks are of 16 tokens or a multiple of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.engine.kernels.library import CpuKernels
from headrace.engine.kernels.memory import map_memory
from headrace.engine.kernels.structures import AttentionStructure, Kind
from headrace.engine.model_config import ModelConfig

IntArray = NDArray[np.int64]

TILE_TOKENS = 16
_KINDS = {torch.float32: Kind.F32, torch.bfloat16: Kind.BF16}


def cache_fits_kernels(config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> bool:
    """Whether `KernelKVCache` can hold this model's keys and values."""
    return block_size % TILE_TOKENS == 0 and config.head_dim % TILE_TOKENS == 0 and dtype in _KINDS


class KernelKVCache:
    """Keys and values of all layers, for `cache_fits_kernels` models. `config` has the heads that are held here."""

    def __init__(
        self, kernels: CpuKernels, config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        assert cache_fits_kernels(config, block_size=block_size, dtype=dtype)
        self.kernels = kernels
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = torch.device("cpu")
        self.dtype = dtype
        self.layer_windows = [config.window_of(layer) for layer in range(config.num_layers)]
        self.shape = AttentionStructure(
            kind=_KINDS[dtype],
            block_size=block_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )
        layer_bytes = 2 * num_blocks * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize
        memory = map_memory(layer_bytes * config.num_layers)
        self.layers = [memory[layer * layer_bytes :][:layer_bytes] for layer in range(config.num_layers)]

    def __repr__(self) -> str:
        return f"KernelKVCache({self.num_blocks} blocks of {self.block_size} tokens, {self.kernels!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelAttention:
    """One step's attention; see `AttentionStep`."""

    cache: KernelKVCache
    spans: IntArray
    """[S, 4]: of neighbouring tokens of one sequence the first row, how many, the first one's position, and where
    the sequence's block table begins in memory."""
    tables: IntArray
    """What those addresses lie in."""

    def attend(self, layer: int, q_thd: Tensor, k_tkd: Tensor, v_tkd: Tensor) -> Tensor:
        cache = self.cache
        spans = torch.from_numpy(self.spans)
        cache.kernels.store(cache.shape, cache.layers[layer], spans, k_tkd, v_tkd)
        window = cache.layer_windows[layer]
        return cache.kernels.attend(cache.shape, cache.layers[layer], spans, q_thd, window=window).to(q_thd.dtype)


def spans_of(
    tables: IntArray, *, table_rows: Sequence[int], num_tokens: Sequence[int], starts: Sequence[int]
) -> IntArray:
    """`KernelAttention.spans` of sequences whose block tables are these rows of `tables` [rows, blocks].

    The sequences' tokens follow each other in the step: `num_tokens` each, from the positions `starts` on.
    """
    assert tables.flags.c_contiguous
    spans = np.empty((len(table_rows), 4), dtype=np.int64)
    spans[:, 1] = num_tokens
    spans[:, 0] = np.cumsum(spans[:, 1]) - spans[:, 1]
    spans[:, 2] = starts
    spans[:, 3] = np.asarray(table_rows, dtype=np.int64) * tables.strides[0] + tables.ctypes.data
    return spans
