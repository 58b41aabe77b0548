"""`gpu_memory_utilization`: what of a device's memory the KV cache gets."""

import dataclasses

import pytest

from headrace.engine import EngineArgs
from headrace.engine.config import EngineConfig
from headrace.engine.executor.memory import DeviceMemory, num_kv_blocks
from headrace.errors import SettingsError
from headrace.testing.fake_core import fake_engine_config

MIB = 2**20
BLOCK_BYTES = 2 * 8 * 2 * 16
"""Of the fake model: keys and values, one head of 8, two bytes, 16 tokens."""


def config(share: float) -> EngineConfig:
    fake = fake_engine_config(max_model_len=64)
    return dataclasses.replace(fake, cache=dataclasses.replace(fake.cache, gpu_memory_utilization=share))


def num_blocks(share: float, *, used_bytes: int = 0) -> int:
    memory = DeviceMemory(total_bytes=100 * MIB, used_bytes=used_bytes)
    return num_kv_blocks(config(share), bytes_per_value=2, is_cpu=False, device_memory=memory)


def test_the_cache_gets_what_weights_working_space_and_others_leave_of_the_share() -> None:
    assert (num_blocks(0.9) - num_blocks(0.5)) * BLOCK_BYTES == pytest.approx(40 * MIB, rel=0.01)
    assert (num_blocks(0.9) - num_blocks(0.9, used_bytes=10 * MIB)) * BLOCK_BYTES == pytest.approx(10 * MIB, rel=0.01)
    assert num_blocks(0.9) * BLOCK_BYTES < 90 * MIB


def test_a_share_that_leaves_no_context_is_refused() -> None:
    with pytest.raises(SettingsError, match="gpu_memory_utilization leaves 0 bytes") as caught:
        num_blocks(0.5, used_bytes=80 * MIB)
    assert caught.value.param == "gpu_memory_utilization"


def test_on_a_cpu_it_is_refused() -> None:
    with pytest.raises(SettingsError, match="runs on a CPU"):
        num_kv_blocks(config(0.9), bytes_per_value=4, is_cpu=True)


@pytest.mark.parametrize("value", [0.0, 1.5, -0.1])
def test_a_share_must_be_one(value: float) -> None:
    with pytest.raises(SettingsError) as caught:
        EngineArgs(model="m", gpu_memory_utilization=value)
    assert caught.value.param == "gpu_memory_utilization"


def test_two_sizes_for_the_cache_are_refused() -> None:
    with pytest.raises(SettingsError, match="drop one"):
        EngineArgs(model="m", gpu_memory_utilization=0.5, kv_cache_memory_bytes=1)
