"""Which part of a model each worker holds, and which settings of workers and cores fit together."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.config import AsyncEngineArgs, EngineArgs
from headrace.engine.parallel_config import check_layer_shares, layer_share, share_of_model
from headrace.errors import SettingsError
from headrace.testing.fake_core import fake_engine_config

MODEL = fake_engine_config().model


def model(*, heads: int, kv_heads: int, channels: int = 96) -> Any:
    return dataclasses.replace(MODEL, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=channels)


@given(kv_heads=st.integers(1, 12), group=st.integers(1, 6), channels=st.integers(16, 300), size=st.integers(1, 16))
def test_the_shares_of_all_workers_are_the_whole_layer_once(
    kv_heads: int, group: int, channels: int, size: int
) -> None:
    shared = model(heads=kv_heads * group, kv_heads=kv_heads, channels=channels)
    try:
        check_layer_shares(shared, size=size)
    except SettingsError:
        assert size > kv_heads  # the model has a head for each worker otherwise
        return
    shares = [layer_share(shared, rank=rank, size=size) for rank in range(size)]
    assert [head for share in shares for head in share.heads] == list(range(kv_heads * group))
    assert [channel for share in shares for channel in share.channels] == list(range(channels))
    for share in shares:
        assert len(share.heads) > 0
        assert {head // group for head in share.heads} == set(share.kv_heads)  # each with what it attends to
        own = share_of_model(shared, share)
        assert own.num_heads % own.num_kv_heads == 0


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 2, 3), (6, 2, 8), (4, 1, 3), (8, 4, 6)])
def test_a_model_whose_heads_cannot_be_dealt_out_is_refused_by_name(heads: int, kv_heads: int, size: int) -> None:
    with pytest.raises(SettingsError, match=f"tensor_parallel_size is {size}, but the model's {heads}") as caught:
        check_layer_shares(model(heads=heads, kv_heads=kv_heads), size=size)
    assert caught.value.param == "tensor_parallel_size"


def test_one_worker_runs_in_the_cores_process_and_several_in_their_own(tiny_model_dir: Path) -> None:
    def executor(**args: Any) -> str:
        return AsyncEngineArgs(model=str(tiny_model_dir), **args).create_engine_config().parallel.executor

    assert executor() == "local"
    assert executor(tensor_parallel_size=2) == "process"
    assert executor(executor_backend="process") == "process"
    assert executor(executor_backend="ray") == executor(worker_use_ray=True) == "ray"


def test_the_core_is_a_ray_actor_only_on_demand(tiny_model_dir: Path) -> None:
    def is_actor(**args: Any) -> bool:
        return AsyncEngineArgs(model=str(tiny_model_dir), **args).create_engine_config().parallel.engine_use_ray

    assert is_actor(engine_use_ray=True)
    assert not is_actor()


@pytest.mark.parametrize(
    ("args", "param"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"executor_backend": "slurm"}, "executor_backend"),
        ({"executor_backend": "local", "tensor_parallel_size": 2}, "executor_backend"),
        ({"executor_backend": "process", "worker_use_ray": True}, "worker_use_ray"),
        ({"worker_timeout_s": 0.0}, "worker_timeout_s"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_by_name(args: dict[str, Any], param: str) -> None:
    with pytest.raises(SettingsError) as caught:
        AsyncEngineArgs(model="nowhere", **args)
    assert caught.value.param == param


def test_a_model_that_cannot_be_shared_stops_the_start(tiny_model_dir: Path) -> None:
    with pytest.raises(SettingsError, match="tensor_parallel_size is 3"):
        EngineArgs(model=str(tiny_model_dir), tensor_parallel_size=3).create_engine_config()
