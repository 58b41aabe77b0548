"""The tiny model that the engine's tests serve."""

from pathlib import Path

import pytest

from headrace.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Llama with tokenizer, ChatML template, eos ids and generation_config.json."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")
