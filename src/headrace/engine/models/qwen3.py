"""Qwen3, dense: the shared decoder, with a norm over each head of queries and keys."""

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import ModelBuild
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits


def build_model(config: ModelConfig, build: ModelBuild) -> CausalModel:
    traits = DecoderTraits(has_qkv_bias=config.attention_bias, has_output_bias=config.attention_bias, has_qk_norm=True)
    return Decoder(config, traits, build)
