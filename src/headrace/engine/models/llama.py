"""Llama, and Mistral within its sliding window: the shared decoder, with biases where the checkpoint says so."""

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import ModelBuild
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits


def build_model(config: ModelConfig, build: ModelBuild) -> CausalModel:
    traits = DecoderTraits(
        has_qkv_bias=config.attention_bias,
        has_output_bias=config.attention_bias,
        has_mlp_bias=config.mlp_bias,
    )
    return Decoder(config, traits, build)
