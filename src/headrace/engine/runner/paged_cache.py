"""The tensors of the paged KV cache and their addressing.

Keys and values of one layer are one table of rows of `head_dim` numbers, ordered (key-value head, block, slot in the
block). A head's slots of one block are therefore contiguous: gathering a context is one lookup of whole blocks, and its
result has the shape that batched matrix products want, with no transposition.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.engine.model_config import ModelConfig

IntArray = NDArray[np.int64]


class PagedKVCache:
    """Keys and values of all layers. Block and slot numbers are those of `headrace.engine.core.kv_cache`."""

    def __init__(
        self, config: ModelConfig, *, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.layer_windows = [config.window_of(layer) for layer in range(config.num_layers)]
        self.device = device
        self._num_slots = num_blocks * block_size
        self._heads: IntArray = np.arange(self.num_kv_heads, dtype=np.int64)
        rows = self.num_kv_heads * self._num_slots
        # Zeros, not garbage: padding reads unwritten slots, whose weight is 0, and 0 * NaN would be NaN.
        self._keys = [_zeros(rows, self.head_dim, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self._values = [_zeros(rows, self.head_dim, device=device, dtype=dtype) for _ in range(config.num_layers)]
        blocks = (self.num_kv_heads * num_blocks, block_size * self.head_dim)
        self._key_blocks = [keys.view(blocks) for keys in self._keys]
        self._value_blocks = [values.view(blocks) for values in self._values]

    def __repr__(self) -> str:
        return f"PagedKVCache({self.num_blocks} blocks of {self.block_size} tokens, {self.device})"

    def row_index(self, slots: IntArray) -> Tensor:
        """Rows of these slots [T] for `store`: [heads * T]."""
        return self._to_device((self._heads[:, None] * self._num_slots + slots[None, :]).reshape(-1))

    def block_index(self, tables: IntArray) -> Tensor:
        """Places of these block tables [B, blocks] for `gather`: [heads, B, blocks]."""
        return self._to_device(self._heads[:, None, None] * self.num_blocks + tables[None, :, :])

    def store(self, layer: int, row_index: Tensor, k_tkd: Tensor, v_tkd: Tensor) -> None:
        """Write new keys and values [T, heads, D] at the rows of their slots."""
        self._keys[layer].index_copy_(0, row_index, k_tkd.transpose(0, 1).reshape(-1, self.head_dim))
        self._values[layer].index_copy_(0, row_index, v_tkd.transpose(0, 1).reshape(-1, self.head_dim))

    def gather(self, layer: int, block_index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of whole block tables: two of [heads * B, blocks * block_size, D]."""
        num_heads, batch, num_blocks = block_index.shape
        shape = (num_heads * batch, num_blocks * self.block_size, self.head_dim)
        keys = torch.embedding(self._key_blocks[layer], block_index).view(shape)
        values = torch.embedding(self._value_blocks[layer], block_index).view(shape)
        return keys, values

    def _to_device(self, array: IntArray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)


def _zeros(num_rows: int, head_dim: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """On a CPU through numpy, whose zeros take memory only once they are written; torch's take it at once."""
    if device.type == "cpu":
        untouched = np.zeros(num_rows * head_dim * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(untouched).view(dtype).view(num_rows, head_dim)
    return torch.zeros(num_rows, head_dim, device=device, dtype=dtype)
