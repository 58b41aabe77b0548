"""Random LoRA adapters in PEFT's directory layout, for tests and benchmarks: what they do means nothing, but is fixed.

Writes the files without PEFT. Knows a model by its config.json alone. Needs torch and safetensors (extra `engine`).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.lora.adapter_config import ADAPTED_LAYERS
from headrace.engine.model_config import ModelConfig, load_model_config

if TYPE_CHECKING:
    import torch


def write_random_lora(
    directory: Path,
    *,
    model: Path,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ADAPTED_LAYERS,
    use_rslora: bool = False,
    seed: int = 0,
    scale: float = 0.1,
) -> Path:
    """Write an adapter for the model at `model` into `directory` (made if absent); returns it.

    `scale` is about the size of what it adds to an output of a layer whose inputs are of size 1.
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "use_rslora": use_rslora,
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    factor = alpha / (rank**0.5 if use_rslora else rank)
    tensors = _draw(load_model_config(str(model)), rank=rank, targets=targets, seed=seed, scale=scale / factor)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def _draw(
    config: ModelConfig, *, rank: int, targets: Sequence[str], seed: int, scale: float
) -> "dict[str, torch.Tensor]":
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config.num_layers):
        for target in targets:
            block, num_inputs, num_outputs = _sizes(config)[target]
            name = f"base_model.model.model.layers.{layer}.{block}.{target}"
            a = torch.randn(rank, num_inputs, generator=generator) * num_inputs**-0.5
            b = torch.randn(num_outputs, rank, generator=generator) * rank**-0.5 * scale
            tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    return tensors


def _sizes(config: ModelConfig) -> dict[str, tuple[str, int, int]]:
    """Block, inputs and outputs of each linear layer."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": ("self_attn", hidden, queries),
        "k_proj": ("self_attn", hidden, keys),
        "v_proj": ("self_attn", hidden, keys),
        "o_proj": ("self_attn", queries, hidden),
        "gate_proj": ("mlp", hidden, intermediate),
        "up_proj": ("mlp", hidden, intermediate),
        "down_proj": ("mlp", intermediate, hidden),
    }
