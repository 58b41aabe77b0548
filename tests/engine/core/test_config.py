"""Settings and model directories are refused by name, before anything is loaded."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.config import AsyncEngineArgs, EngineArgs, EngineConfig
from headrace.engine.executor.memory import num_kv_blocks
from headrace.engine.model_config import RopeConfig, SamplingDefaults
from headrace.errors import SettingsError


@pytest.fixture
def edit_model(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model with fields of its config.json changed; None removes one."""

    def edit(**changes: Any) -> Path:
        directory = tmp_path / "edited"
        shutil.copytree(tiny_model_dir, directory, dirs_exist_ok=True)
        config = {**json.loads((directory / "config.json").read_text()), **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(kept))
        return directory

    return edit


def test_a_config_is_derived_from_the_model_directory(tiny_model_dir: Path) -> None:
    model = EngineArgs(model=str(tiny_model_dir)).create_engine_config().model
    assert model.served_model_name == tiny_model_dir.name
    assert model.tokenizer == model.model == str(tiny_model_dir)
    assert (model.max_model_len, model.eos_token_ids, model.head_dim) == (512, (2, 0), 16)
    assert model.sampling_defaults == SamplingDefaults(temperature=1.0)
    assert model.kv_values_per_token == 2 * 2 * 2 * 16


def test_a_config_survives_the_way_to_another_process(tiny_model_dir: Path) -> None:
    config = AsyncEngineArgs(model=str(tiny_model_dir), max_model_len=100, seed=3).create_engine_config()
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


def test_making_a_config_does_not_import_torch(tiny_model_dir: Path) -> None:
    code = (
        "import sys; from headrace.engine.config import EngineArgs; import headrace.engine.core.engine_core; "
        f"EngineArgs(model={str(tiny_model_dir)!r}).create_engine_config(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("seed", -1),
        ("seed", 2**63),
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("block_size", 0),
        ("kv_cache_memory_bytes", 0),
        ("cpu_threads", 0),
        ("dtype", "int8"),
        ("device", "tpu"),
        ("scheduling_policy", "random"),
        ("load_format", "gguf"),
        ("max_num_queued_reqs", -1),
        ("max_num_queued_tokens", 0),
        ("prefix_caching_hash_algo", "md5"),
        ("profiler_max_steps", 0),
        ("max_num_batched_tokens", 63),
        ("max_log_len", -1),
        ("max_num_seqs", "5"),
        ("max_num_seqs", 2.5),
        ("kv_cache_memory_bytes", "1GiB"),
        ("kv_cache_memory_bytes", True),
        ("enable_lora", 1),
        ("enable_prefix_caching", None),
        ("gpu_memory_utilization", "0.5"),
        ("served_model_name", 5),
        ("disable_log_requests", "yes"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value(setting: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=str(value)) as caught:
        AsyncEngineArgs(model="anywhere", **{setting: value})
    assert caught.value.param == setting


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"{tmp_path}.*config\.json is missing") as caught:
        EngineArgs(model=str(tmp_path)).create_engine_config()
    assert caught.value.param == "model"


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"cannot use .*config\.json"):
        EngineArgs(model=str(tmp_path)).create_engine_config()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*supported: LlamaForCausalLM"),
        ({"architectures": None}, "architecture none"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_type='dynamic'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type='dynamic'"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(
    changes: dict[str, Any], text: str, edit_model: Callable[..., Path]
) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        EngineArgs(model=str(edit_model(**changes))).create_engine_config()
    assert caught.value.param == "model"


def test_a_longer_context_than_the_models_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(SettingsError, match=r"513.*512") as caught:
        EngineArgs(model=str(tiny_model_dir), max_model_len=513).create_engine_config()
    assert caught.value.param == "max_model_len"


@pytest.mark.parametrize(
    ("changes", "layer_windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 100}, (100, 100)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, ()),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "use_sliding_window": False}, ()),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 100,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 100),
        ),
    ],
    ids=str,
)
def test_a_sliding_window_does_not_shorten_the_context(
    changes: dict[str, Any], layer_windows: tuple[int | None, ...], edit_model: Callable[..., Path]
) -> None:
    config = EngineArgs(model=str(edit_model(**changes))).create_engine_config()
    assert config.model.layer_windows == layer_windows
    assert config.model.max_model_len == config.scheduler.max_model_len == 512


def test_newer_rope_parameters_are_read(edit_model: Callable[..., Path]) -> None:
    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    config = EngineArgs(model=str(edit_model(rope_parameters=rope, rope_theta=None))).create_engine_config()
    assert config.model.rope == RopeConfig(theta=5000.0, kind="linear", factor=2.0)


def test_a_tokenizer_that_is_not_there_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no tokenizer at") as caught:
        EngineArgs(model=str(tiny_model_dir), tokenizer=str(tmp_path / "none")).create_engine_config()
    assert caught.value.param == "tokenizer"


def num_blocks(directory: Path, **args: Any) -> int:
    config = EngineArgs(model=str(directory), **args).create_engine_config()
    return num_kv_blocks(config, bytes_per_value=4, is_cpu=True)


def test_the_cache_holds_what_all_requests_need_if_that_is_little(tiny_model_dir: Path) -> None:
    assert num_blocks(tiny_model_dir, max_num_seqs=3) == 3 * 512 // 16


def test_the_cache_is_capped(tiny_model_dir: Path) -> None:
    bytes_per_block = 16 * 128 * 4
    assert num_blocks(tiny_model_dir, max_num_seqs=2048) == 2**28 // bytes_per_block


def test_the_cache_never_holds_less_than_one_context(tiny_model_dir: Path) -> None:
    config = EngineArgs(model=str(tiny_model_dir)).create_engine_config()
    assert num_kv_blocks(config, bytes_per_value=2**20, is_cpu=True) == 512 // 16


def test_given_memory_is_used_in_whole_blocks(tiny_model_dir: Path) -> None:
    bytes_per_block = 16 * 128 * 4
    assert num_blocks(tiny_model_dir, kv_cache_memory_bytes=40 * bytes_per_block + 5) == 40


def test_memory_for_less_than_one_context_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(SettingsError, match="room for 16 tokens") as caught:
        num_blocks(tiny_model_dir, kv_cache_memory_bytes=16 * 128 * 4)
    assert caught.value.param == "kv_cache_memory_bytes"


def test_without_chunked_prefill_a_step_must_hold_a_whole_context(tiny_model_dir: Path) -> None:
    args = {"model": str(tiny_model_dir), "enable_chunked_prefill": False, "max_num_batched_tokens": 300}
    with pytest.raises(SettingsError, match="300 and a context 512") as caught:
        EngineArgs(**args).create_engine_config()
    assert caught.value.param == "max_num_batched_tokens"
    assert not EngineArgs(**args, max_model_len=300).create_engine_config().scheduler.enable_chunked_prefill


def test_an_empty_served_model_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="served_model_name is empty") as caught:
        EngineArgs(model="somewhere", served_model_name="")
    assert caught.value.param == "served_model_name"
