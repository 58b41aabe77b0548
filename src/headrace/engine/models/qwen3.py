"""Qwen3, dense: the shared decoder, with a norm over each head of queries and keys."""

import torch

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits
from headrace.engine.models.weights import WeightSource


def build(config: ModelConfig, weights: WeightSource, *, device: torch.device, dtype: torch.dtype) -> CausalModel:
    traits = DecoderTraits(has_qkv_bias=config.attention_bias, has_output_bias=config.attention_bias, has_qk_norm=True)
    return Decoder(config, traits, weights, device=device, dtype=dtype)
