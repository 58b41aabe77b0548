"""The model's own pooling is read from the files that sentence-transformers writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.pooling_config import read_default_pooling
from headrace.engine.pooling_params import PoolingParams
from headrace.errors import SettingsError

Write = Callable[..., Path]

MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """modules.json, and the pooling's config.json with these fields."""

    def write(*, kinds: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"), **pooling: Any) -> Path:
        modules = [
            {
                "idx": index,
                "name": str(index),
                "path": f"{index}_{kind}",
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, kind in enumerate(kinds)
        ]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return tmp_path

    return write


def flags(*on: str) -> dict[str, bool]:
    return {f"pooling_mode_{mode}": mode in on for mode in MODES}


@pytest.mark.parametrize(("mode", "pooling"), [("cls_token", "cls"), ("mean_tokens", "mean"), ("lasttoken", "last")])
def test_the_flag_that_is_set_names_the_pooling(mode: str, pooling: str, write: Write) -> None:
    assert read_default_pooling(write(word_embedding_dimension=48, **flags(mode))) == pooling


def test_a_newer_config_names_the_pooling_itself(write: Write) -> None:
    assert read_default_pooling(write(pooling_mode="mean")) == "mean"


def test_a_directory_that_says_nothing_pools_the_last_token(tmp_path: Path, llama: Any) -> None:
    assert read_default_pooling(tmp_path) == "last"
    assert read_default_pooling(llama.directory) == "last"


@pytest.mark.parametrize("modes", [("max_tokens",), ("cls_token", "mean_tokens"), ()])
def test_a_pooling_that_is_not_built_is_refused(modes: tuple[str, ...], write: Write) -> None:
    with pytest.raises(SettingsError, match="need the pooling"):
        read_default_pooling(write(**flags(*modes)))


def test_a_layer_behind_the_pooling_is_refused(write: Write) -> None:
    with pytest.raises(SettingsError, match="need the layer Dense"):
        read_default_pooling(write(kinds=("Transformer", "Pooling", "Dense"), **flags("mean_tokens")))


def test_a_file_of_another_form_is_refused(write: Write) -> None:
    directory = write(**flags("mean_tokens"))
    (directory / "modules.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"cannot use modules\.json"):
        read_default_pooling(directory)


def test_a_request_that_names_no_pooling_gets_the_models() -> None:
    params = PoolingParams(dimensions=4).for_model(default_pooling="cls", hidden_size=8)
    assert params == PoolingParams(pooling_type="cls", dimensions=4)
    named = PoolingParams(pooling_type="mean")
    assert named.for_model(default_pooling="cls", hidden_size=8) is named
