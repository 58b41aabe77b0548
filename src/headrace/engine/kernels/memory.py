"""Memory in huge pages, where the system has them: weights and caches are read whole, and small pages cost a fifth.

The pages of a fresh mapping are zeros, and take memory only once they are written.
"""

import contextlib
import mmap

import torch
from torch import Tensor

_ALIGNMENT = 64
_CHUNK_BYTES = 64 * 2**20


def map_memory(num_bytes: int) -> Tensor:
    """Zeros [num_bytes] uint8, which are given back with the last tensor that looks at them."""
    # Shared mappings, Python's default, never get huge pages.
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Arena:
    """Hands out pieces of large mappings, for many tensors that live as long as each other."""

    def __init__(self, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._num_used = 0

    def __repr__(self) -> str:
        return f"Arena({self._num_used} of {len(self._chunk)} bytes used)"

    def take(self, num_bytes: int) -> Tensor:
        """Zeros [num_bytes] uint8, aligned to a cache line."""
        if self._num_used + num_bytes > len(self._chunk):
            self._chunk = map_memory(max(self._chunk_bytes, num_bytes))
            self._num_used = 0
        taken = self._chunk[self._num_used : self._num_used + num_bytes]
        self._num_used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return taken
