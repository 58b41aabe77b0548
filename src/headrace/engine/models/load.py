"""Builds the model of a `ModelConfig` from its directory (blocking: reads all weights)."""

import importlib
from pathlib import Path
from typing import cast

import torch

from headrace.engine.config import LoadFormat
from headrace.engine.model_config import ModelConfig
from headrace.engine.models.architectures import ARCHITECTURES
from headrace.engine.models.build import LinearAdapters, MakeProduct, ModelBuild, Parallel
from headrace.engine.models.decoder import CausalModel
from headrace.engine.models.products import ProductMaker
from headrace.engine.models.weights import DummyWeights, SafetensorsWeights
from headrace.engine.parallel_config import layer_share
from headrace.errors import SettingsError

_NOT_WEIGHTS = ("rotary_emb.inv_freq", "attention.masked_bias", "attention.bias")
"""Buffers that older exports wrote beside the weights."""


def load_model(
    config: ModelConfig,
    *,
    load_format: LoadFormat,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    make_product: MakeProduct | None = None,
    adapters: LinearAdapters | None = None,
    parallel: Parallel | None = None,
) -> CausalModel:
    """Raises SettingsError if a tensor is missing, has the wrong shape, or is left over."""
    weights: SafetensorsWeights | DummyWeights
    if load_format == "dummy":
        weights = DummyWeights(device=device, dtype=dtype, seed=seed)
    else:
        weights = SafetensorsWeights(Path(config.model), device=device, dtype=dtype)
    rank, size = (0, 1) if parallel is None else (parallel.rank, parallel.size)
    build = ModelBuild(
        weights=weights,
        device=device,
        dtype=dtype,
        make_product=make_product or ProductMaker(),
        share=layer_share(config, rank=rank, size=size),
        adapters=adapters,
        parallel=parallel,
    )
    build_model = importlib.import_module(ARCHITECTURES[config.architecture]).build_model
    model = cast("CausalModel", build_model(config, build))
    if isinstance(weights, SafetensorsWeights):
        _refuse_leftovers(weights.untaken(), config)
        weights.release_pages()
    return model


def _refuse_leftovers(names: tuple[str, ...], config: ModelConfig) -> None:
    """A tensor that no layer took means that this is not the model that config.json describes."""
    tied_head = ("lm_head.weight",) if config.tie_word_embeddings else ()
    leftovers = [name for name in names if name not in tied_head and not name.endswith(_NOT_WEIGHTS)]
    if leftovers:
        message = f"{config.model} holds {len(leftovers)} tensors that {config.architecture} has no place for: "
        raise SettingsError(message + ", ".join(leftovers[:5]), param="model")
