"""The models that the engine's tests serve, and cores that serve them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.reference_models import ReferenceModel, make_reference_model

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.testing.core_driver import CoreDriver
from headrace.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Llama with tokenizer, ChatML template, eos ids and generation_config.json."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def make_reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ReferenceModel]:
    """Builds a family of FAMILIES once, with random weights."""
    made: dict[str, ReferenceModel] = {}

    def make(family: str) -> ReferenceModel:
        if family not in made:
            made[family] = make_reference_model(family, tmp_path_factory.mktemp("models") / family)
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
