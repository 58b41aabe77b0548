"""What config.json and generation_config.json say is read in every form, honoured or refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.model_config import ModelConfig, RopeConfig, SamplingDefaults, load_model_config
from headrace.errors import SettingsError

Edit = Callable[..., ModelConfig]


@pytest.fixture
def edit(make_reference: Callable[[str], Any], tmp_path: Path) -> Edit:
    """The config of a small llama with fields changed; None removes one."""

    def edit(
        *, generation: dict[str, Any] | None = None, max_model_len: int | None = None, **fields: Any
    ) -> ModelConfig:
        config = {**json.loads((make_reference("llama").directory / "config.json").read_text()), **fields}
        kept = {name: value for name, value in config.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return load_model_config(str(tmp_path), max_model_len=max_model_len)

    return edit


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


def test_positions_are_read_from_older_and_newer_configs_alike(edit: Edit) -> None:
    newer = edit(rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **YARN})
    older = edit(rope_parameters=None, rope_theta=5e5, rope_scaling={"type": "yarn", **YARN})
    assert newer == older
    assert (newer.rope.kind, newer.rope.theta, newer.rope.factor) == ("yarn", 5e5, 4.0)
    assert newer.rope.original_max_position == 64
    assert newer.rope.attention_factor == pytest.approx(1.1386294)


def test_yarn_extends_the_context(edit: Edit) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 3.0}
    assert edit(rope_parameters=rope).max_model_len == 3 * 256
    with pytest.raises(SettingsError, match="at most 768"):
        edit(rope_parameters=rope, max_model_len=769)


def test_linear_scaling_allows_a_longer_context_to_whom_asks(edit: Edit) -> None:
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    assert edit(rope_parameters=rope).max_model_len == 256
    assert edit(rope_parameters=rope, max_model_len=512).max_model_len == 512
    with pytest.raises(SettingsError, match="at most 512"):
        edit(rope_parameters=rope, max_model_len=513)


def test_no_scaling_is_the_default(edit: Edit) -> None:
    assert edit(rope_parameters=None, rope_scaling=None, rope_theta=12.0).rope == RopeConfig(theta=12.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su"])
def test_a_scaling_that_is_not_built_is_named(kind: str, edit: Edit) -> None:
    with pytest.raises(SettingsError, match=f"rope_type='{kind}', which is not built"):
        edit(rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 2.0})


def test_the_recommended_sampling_is_read(edit: Edit) -> None:
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_new_tokens": 77,
        "eos_token_id": [5, 7],
    }
    config = edit(generation=generation)
    assert config.sampling_defaults == SamplingDefaults(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, max_tokens=77
    )
    assert config.eos_token_ids == (5, 7)


def test_without_recommendations_the_configs_own_end_of_sequence_holds(edit: Edit) -> None:
    config = edit(eos_token_id=9)
    assert (config.sampling_defaults, config.eos_token_ids) == (SamplingDefaults(), (9,))


def test_the_pooling_comes_with_the_directory(edit: Edit, tmp_path: Path) -> None:
    assert edit().default_pooling == "last"
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "p"}]')
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert edit().default_pooling == "mean"


def test_a_directory_is_copied_and_moved_freely(make_reference: Callable[[str], Any], tmp_path: Path) -> None:
    source = make_reference("qwen3").directory
    copy = Path(shutil.copytree(source, tmp_path / "elsewhere"))
    assert load_model_config(str(copy)).model == str(copy)
