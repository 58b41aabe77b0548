"""Chooses the KV cache's layout: that of our CPU kernels where they can be used, else plain torch's."""

import logging

import torch

from headrace.engine.kernels.library import CpuKernels
from headrace.engine.kernels.paged_attention import KernelKVCache, cache_fits_kernels
from headrace.engine.model_config import ModelConfig
from headrace.engine.runner.paged_cache import PagedKVCache

logger = logging.getLogger(__name__)


def make_kv_cache(
    config: ModelConfig,
    *,
    num_blocks: int,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    kernels: CpuKernels | None,
) -> PagedKVCache | KernelKVCache:
    """`config` has the heads that this worker holds."""
    if kernels is not None and cache_fits_kernels(config, block_size=block_size, dtype=dtype):
        return KernelKVCache(kernels, config, num_blocks=num_blocks, block_size=block_size, dtype=dtype)
    if kernels is not None:
        logger.debug(
            "attention by plain torch: the kernels take neither block_size %d, head size %d nor type %s",
            block_size,
            config.head_dim,
            dtype,
        )
    return PagedKVCache(config, num_blocks=num_blocks, block_size=block_size, device=device, dtype=dtype)
