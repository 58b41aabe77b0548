"""Adapters of a small random model, and what transformers answers with their weights merged into the model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.reference_models import ReferenceModel, merge_lora

from headrace.engine.lora_request import LoRARequest
from headrace.testing.random_lora import write_random_lora

ADAPTERS: dict[str, dict[str, Any]] = {
    "wide": {"rank": 8, "alpha": 16.0},
    "attention": {"rank": 3, "alpha": 12.0, "targets": ["q_proj", "v_proj"], "scale": 0.5},
    "mlp": {"rank": 5, "alpha": 4.0, "targets": ["down_proj", "up_proj"], "use_rslora": True, "scale": 0.5},
    "output": {"rank": 1, "alpha": 1.0, "targets": ["o_proj", "gate_proj", "k_proj"], "scale": 0.5},
}


class Adapted:
    """A model, its adapters by name, and merged copies of it."""

    def __init__(self, base: ReferenceModel, directory: Path) -> None:
        self.base = base
        self.paths = {
            name: write_random_lora(directory / name, model=base.directory, seed=seed, **options)
            for seed, (name, options) in enumerate(ADAPTERS.items())
        }
        self._merged: dict[str, ReferenceModel] = {}

    def request(self, name: str) -> LoRARequest:
        return LoRARequest(name, list(ADAPTERS).index(name) + 1, str(self.paths[name]))

    def greedy(self, name: str | None, prompt: list[int], *, num_tokens: int = 16) -> list[int]:
        """transformers' answer with this adapter merged; without one for None."""
        if name is None:
            return self.base.greedy(prompt, num_tokens=num_tokens)
        if name not in self._merged:
            self._merged[name] = merge_lora(self.base, self.paths[name])
        return self._merged[name].greedy(prompt, num_tokens=num_tokens)


@pytest.fixture(scope="session")
def adapted(make_reference: Callable[[str], ReferenceModel], tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(make_reference("llama"), tmp_path_factory.mktemp("adapters"))
