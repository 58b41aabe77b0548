"""Qwen2 and Qwen2.5: the shared decoder, with a bias on queries, keys and values."""

import torch

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits
from headrace.engine.models.weights import WeightSource


def build(config: ModelConfig, weights: WeightSource, *, device: torch.device, dtype: torch.dtype) -> CausalModel:
    return Decoder(config, DecoderTraits(has_qkv_bias=True), weights, device=device, dtype=dtype)
