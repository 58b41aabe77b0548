"""Adapters' settings and requests are checked where they are made."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.config import EngineArgs, EngineConfig, LoRAConfig
from headrace.engine.lora_request import LoRARequest
from headrace.errors import InvalidRequestError, SettingsError


def test_adapters_are_off_by_default(tiny_model_dir: Path) -> None:
    assert EngineArgs(model=str(tiny_model_dir)).create_engine_config().lora is None


def test_twice_as_many_adapters_are_kept_as_run(tiny_model_dir: Path) -> None:
    config = EngineArgs(model=str(tiny_model_dir), enable_lora=True, max_loras=3).create_engine_config()
    assert config.lora == LoRAConfig(max_loras=3, max_lora_rank=64, max_cpu_loras=6)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("setting", "value"), [("max_loras", 0), ("max_lora_rank", 0), ("max_cpu_loras", 3), ("max_cpu_loras", -1)]
)
def test_a_setting_out_of_range_is_named(setting: str, value: int) -> None:
    with pytest.raises(SettingsError) as caught:
        EngineArgs(model="any", **{setting: value})
    assert caught.value.param == setting


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (("", 1, "/a"), "lora_name"),
        ((None, 1, "/a"), "lora_name"),
        (("a", 0, "/a"), "lora_int_id"),
        (("a", True, "/a"), "lora_int_id"),
        (("a", "1", "/a"), "lora_int_id"),
        (("a", 2**63, "/a"), "lora_int_id"),
        (("a", 1, ""), "lora_path"),
        (("a", 1, Path("/a")), "lora_path"),
    ],
)
def test_a_bad_request_names_its_field(fields: tuple[Any, Any, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        LoRARequest(*fields)
    assert caught.value.param == param
