"""How many blocks the KV cache gets. Pure arithmetic; `EngineArgs.kv_cache_memory_bytes` states the rule."""

from headrace.engine.config import EngineConfig
from headrace.errors import SettingsError

_MAX_AUTO_BYTES_CPU = 256 * 2**20
_MAX_AUTO_BYTES_CUDA = 4 * 2**30


def num_kv_blocks(config: EngineConfig, *, bytes_per_value: int, is_cpu: bool) -> int:
    """Raises SettingsError if the memory given holds less than one whole context."""
    block_size = config.cache.block_size
    bytes_per_block = config.model.kv_values_per_token * bytes_per_value * block_size
    blocks_per_context = -(-config.model.max_model_len // block_size)
    given = config.cache.kv_cache_memory_bytes
    if given is None:
        most = (_MAX_AUTO_BYTES_CPU if is_cpu else _MAX_AUTO_BYTES_CUDA) // bytes_per_block
        return max(blocks_per_context, min(blocks_per_context * config.scheduler.max_num_seqs, most))
    num_blocks = given // bytes_per_block
    if num_blocks < blocks_per_context:
        message = (
            f"kv_cache_memory_bytes is {given}, room for {num_blocks * block_size} tokens, less than one context of "
            f"{config.model.max_model_len}: give {blocks_per_context * bytes_per_block} bytes or lower max_model_len"
        )
        raise SettingsError(message, param="kv_cache_memory_bytes")
    return num_blocks
