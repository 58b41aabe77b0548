"""Tiny random models of each family as transformers saves them, and transformers' own greedy answers."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.config import EngineArgs
from headrace.engine.core import EngineCore
from headrace.testing.core_driver import CoreDriver

SHAPE = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # wide enough that the best token is clear and depends on the context
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
}


class ReferenceModel:
    """A model directory and transformers' answers for it, in float32."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory = directory
        self._model = model
        self._answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def greedy(self, prompt: Sequence[int], *, num_tokens: int = 16) -> list[int]:
        key = (tuple(prompt), num_tokens)
        if key not in self._answers:
            import torch

            output = self._model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
            )
            self._answers[key] = output[0, len(prompt) :].tolist()
        return self._answers[key]


@pytest.fixture(scope="session")
def make_reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ReferenceModel]:
    """Builds a family of FAMILIES once, with random weights."""
    made: dict[str, ReferenceModel] = {}

    def make(family: str) -> ReferenceModel:
        if family not in made:
            made[family] = _make_reference(family, tmp_path_factory.mktemp("models") / family)
        return made[family]

    return make


@pytest.fixture(scope="session")
def llama(make_reference: Callable[[str], ReferenceModel]) -> ReferenceModel:
    return make_reference("llama")


@pytest.fixture
def make_driver() -> Callable[..., CoreDriver]:
    """A core on one thread for a model directory, with `EngineArgs` by keyword, and its driver."""

    def make(directory: Path, **args: Any) -> CoreDriver:
        config = EngineArgs(model=str(directory), **{"cpu_threads": 1, "device": "cpu", **args}).create_engine_config()
        return CoreDriver(EngineCore(config))

    return make


def _make_reference(family: str, directory: Path) -> ReferenceModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers' own imports
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        name, changes = FAMILIES[family]
        torch.manual_seed(7)
        config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
        model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
        _randomize_vectors(model)
        model.generation_config.pad_token_id = 0
        model.save_pretrained(directory, max_shard_size="40KB" if family == "llama" else "5GB")
    return ReferenceModel(directory, model)


def _randomize_vectors(model: Any) -> None:
    """Biases start at 0 and norms at 1; random ones show whether they are applied."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
