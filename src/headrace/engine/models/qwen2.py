"""Qwen2 and Qwen2.5: the shared decoder, with a bias on queries, keys and values."""

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import ModelBuild
from headrace.engine.models.decoder import CausalModel, Decoder, DecoderTraits


def build_model(config: ModelConfig, build: ModelBuild) -> CausalModel:
    return Decoder(config, DecoderTraits(has_qkv_bias=True), build)
