"""Decode steps in tensors that keep their places, so that the kernels they launch can be recorded once and replayed.

Batches and contexts are padded to powers of two, one recording for each pair of them that occurs. Padding repeats the
batch's first sequence: it computes and stores once more what is stored anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.engine.models.decoder import CausalModel
from headrace.engine.models.forward_batch import ForwardBatch
from headrace.engine.runner.attention import DecodeGroup, PagedAttention, StepParts, decode_mask
from headrace.engine.runner.paged_cache import IntArray, PagedKVCache

Replay: TypeAlias = Callable[[], Tensor]
"""Computes from what the static tensors hold now; the same result tensor each time."""

Record: TypeAlias = Callable[[Replay], Replay]
"""Makes of a computation one that is faster to repeat."""


class StaticDecode:
    """One padded batch. `batch` reads what `fill` has written."""

    def __init__(self, cache: PagedKVCache, *, batch_size: int, num_blocks: int, dtype: torch.dtype) -> None:
        self._cache = cache
        self._size = batch_size
        self._num_blocks = num_blocks
        self._dtype = dtype
        heads, device = cache.num_kv_heads, cache.device
        num_slots = num_blocks * cache.block_size
        self._token_ids = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._store_rows = torch.zeros(heads * batch_size, dtype=torch.int64, device=device)
        self._block_index = torch.zeros(heads, batch_size, num_blocks, dtype=torch.int64, device=device)
        windows = {None, *cache.layer_windows}
        self._masks = {w: torch.zeros(heads * batch_size, 1, num_slots, dtype=dtype, device=device) for w in windows}
        self.batch = ForwardBatch(
            token_ids=self._token_ids, positions=self._positions, attention=self._attention(), output_rows=None
        )

    def fill(self, token_ids: IntArray, positions: IntArray, tables: IntArray) -> None:
        """The sequences' newest tokens [B], their positions [B] and block tables [B, blocks]."""
        num_padding = self._size - len(token_ids)
        order = np.concatenate((np.arange(len(token_ids)), np.zeros(num_padding, dtype=np.int64)))
        positions, tables = positions[order], tables[order, : self._num_blocks]
        block_of, slot_in_block = np.divmod(positions, self._cache.block_size)
        slots = tables[np.arange(self._size), block_of] * self._cache.block_size + slot_in_block
        self._token_ids.copy_(torch.from_numpy(token_ids[order]))
        self._positions.copy_(torch.from_numpy(positions))
        self._store_rows.copy_(self._cache.row_index(slots))
        self._block_index.copy_(self._cache.block_index(tables))
        num_slots = self._num_blocks * self._cache.block_size
        for window, mask in self._masks.items():
            mask.copy_(decode_mask(positions + 1, num_slots, self._cache, self._dtype, window))

    def _attention(self) -> PagedAttention:
        parts = {window: StepParts(groups=[self._group(mask)], spans=[]) for window, mask in self._masks.items()}
        return PagedAttention(
            self._cache,
            store_rows=self._store_rows,
            groups=parts[None].groups,
            spans=[],
            windowed={window: part for window, part in parts.items() if window is not None},
        )

    def _group(self, mask: Tensor) -> DecodeGroup:
        num_slots = self._num_blocks * self._cache.block_size
        return DecodeGroup(
            start=0, stop=self._size, block_index=self._block_index, context_len=num_slots, mask_kb1s=mask
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    static: StaticDecode
    replay: Replay


class StaticDecoder:
    """Runs decode steps by recordings, each made when its shape first occurs (at most a few dozen)."""

    def __init__(
        self, model: CausalModel, cache: PagedKVCache, *, max_num_blocks: int, dtype: torch.dtype, record: Record
    ) -> None:
        self._model = model
        self._cache = cache
        self._max_num_blocks = max_num_blocks
        self._dtype = dtype
        self._record = record
        self._recorded: dict[tuple[int, int], _Recorded] = {}

    def __repr__(self) -> str:
        return f"StaticDecoder({len(self._recorded)} shapes)"

    def forward(self, token_ids: IntArray, positions: IntArray, tables: IntArray) -> Tensor:
        """See `StaticDecode.fill`; hidden states [B, hidden], which the next call overwrites."""
        longest = int(positions.max()) // self._cache.block_size + 1
        num_blocks = min(_power_of_two(longest), self._max_num_blocks)
        shape = _power_of_two(len(token_ids)), num_blocks
        recorded = self._recorded.get(shape)
        if recorded is not None:
            recorded.static.fill(token_ids, positions, tables)
        else:
            recorded = self._recorded[shape] = self._make(shape, token_ids, positions, tables)
        return recorded.replay()[: len(token_ids)]

    def _make(self, shape: tuple[int, int], token_ids: IntArray, positions: IntArray, tables: IntArray) -> _Recorded:
        static = StaticDecode(self._cache, batch_size=shape[0], num_blocks=shape[1], dtype=self._dtype)
        static.fill(token_ids, positions, tables)
        return _Recorded(static=static, replay=self._record(lambda: self._model.forward(static.batch)))


def _power_of_two(count: int) -> int:
    """The least one that is not below `count`."""
    return 1 << (count - 1).bit_length()
