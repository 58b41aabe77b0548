"""Builds the model of a `ModelConfig` from its directory (blocking: reads all weights)."""

import importlib
from pathlib import Path
from typing import cast

import torch

from headrace.engine.config import LoadFormat
from headrace.engine.model_config import ModelConfig
from headrace.engine.models.architectures import ARCHITECTURES
from headrace.engine.models.decoder import CausalModel
from headrace.engine.models.weights import DummyWeights, SafetensorsWeights
from headrace.errors import SettingsError

_NOT_WEIGHTS = ("rotary_emb.inv_freq", "attention.masked_bias", "attention.bias")
"""Buffers that older exports wrote beside the weights."""


def load_model(
    config: ModelConfig, *, load_format: LoadFormat, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> CausalModel:
    """Raises SettingsError if a tensor is missing, has the wrong shape, or is left over."""
    build = importlib.import_module(ARCHITECTURES[config.architecture]).build
    if load_format == "dummy":
        return cast(
            "CausalModel",
            build(config, DummyWeights(device=device, dtype=dtype, seed=seed), device=device, dtype=dtype),
        )
    weights = SafetensorsWeights(Path(config.model), device=device, dtype=dtype)
    model = cast("CausalModel", build(config, weights, device=device, dtype=dtype))
    _refuse_leftovers(weights.untaken(), config)
    return model


def _refuse_leftovers(names: tuple[str, ...], config: ModelConfig) -> None:
    """A tensor that no layer took means that this is not the model that config.json describes."""
    tied_head = ("lm_head.weight",) if config.tie_word_embeddings else ()
    leftovers = [name for name in names if name not in tied_head and not name.endswith(_NOT_WEIGHTS)]
    if leftovers:
        message = f"{config.model} holds {len(leftovers)} tensors that {config.architecture} has no place for: "
        raise SettingsError(message + ", ".join(leftovers[:5]), param="model")
