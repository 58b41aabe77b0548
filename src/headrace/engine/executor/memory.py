"""How many blocks the KV cache gets. Pure arithmetic; `EngineArgs.kv_cache_memory_bytes` states the rule."""

from dataclasses import dataclass

from headrace.engine.config import EngineConfig
from headrace.engine.model_config import ModelConfig
from headrace.errors import SettingsError

_MAX_AUTO_BYTES_CPU = 256 * 2**20
_MAX_AUTO_BYTES_CUDA = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Of a CUDA device, before the model is loaded."""

    total_bytes: int
    used_bytes: int


def num_kv_blocks(
    config: EngineConfig, *, bytes_per_value: int, is_cpu: bool, device_memory: DeviceMemory | None = None
) -> int:
    """Raises SettingsError if the memory given holds less than one whole context."""
    block_size = config.cache.block_size
    bytes_per_block = config.model.kv_values_per_token * bytes_per_value * block_size
    blocks_per_context = -(-config.model.max_model_len // block_size)
    given, setting = _given_bytes(config, bytes_per_value=bytes_per_value, device_memory=device_memory)
    if given is None:
        most = (_MAX_AUTO_BYTES_CPU if is_cpu else _MAX_AUTO_BYTES_CUDA) // bytes_per_block
        return max(blocks_per_context, min(blocks_per_context * config.scheduler.max_num_seqs, most))
    num_blocks = given // bytes_per_block
    if num_blocks < blocks_per_context:
        message = (
            f"{setting} leaves {given} bytes, room for {num_blocks * block_size} tokens, less than one context of "
            f"{config.model.max_model_len}: give {blocks_per_context * bytes_per_block} bytes or lower max_model_len"
        )
        raise SettingsError(message, param=setting)
    return num_blocks


def _given_bytes(
    config: EngineConfig, *, bytes_per_value: int, device_memory: DeviceMemory | None
) -> tuple[int | None, str]:
    """What the settings give the cache, and which of them does."""
    share = config.cache.gpu_memory_utilization
    if share is None:
        return config.cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    if device_memory is None:
        message = f"gpu_memory_utilization is {share}, but the model runs on a CPU; give kv_cache_memory_bytes"
        raise SettingsError(message, param="gpu_memory_utilization")
    model_bytes = (_num_weights(config.model) + _num_working_values(config)) * bytes_per_value
    left = int(share * device_memory.total_bytes) - device_memory.used_bytes - model_bytes
    return max(0, left), "gpu_memory_utilization"


def _num_weights(model: ModelConfig) -> int:
    attention = model.hidden_size * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
    per_layer = attention + 3 * model.hidden_size * model.intermediate_size
    num_embeddings = 1 if model.tie_word_embeddings else 2
    return model.num_layers * per_layer + num_embeddings * model.vocab_size * model.hidden_size


def _num_working_values(config: EngineConfig) -> int:
    """The largest tensors of a step that live together, generously: one layer's for each token, logits in 32 bits."""
    model, scheduler = config.model, config.scheduler
    per_token = 4 * model.hidden_size + 3 * model.intermediate_size + 2 * model.num_heads * model.head_dim
    return 2 * scheduler.max_num_batched_tokens * per_token + 4 * scheduler.max_num_seqs * model.vocab_size
