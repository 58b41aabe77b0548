"""Llama, and Mistral within its sliding window: the shared decoder, with biases where the checkpoint says so."""

import torch

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits
from headrace.engine.models.weights import WeightSource


def build(config: ModelConfig, weights: WeightSource, *, device: torch.device, dtype: torch.dtype) -> CausalModel:
    traits = DecoderTraits(
        has_qkv_bias=config.attention_bias,
        has_output_bias=config.attention_bias,
        has_mlp_bias=config.mlp_bias,
    )
    return Decoder(config, traits, weights, device=device, dtype=dtype)
