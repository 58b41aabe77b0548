"""Which number type `dtype=auto` chooses where our kernels cannot attend to the cache."""

from pathlib import Path

import pytest
import torch

from headrace.engine.config import EngineArgs
from headrace.engine.executor.worker import Worker
from headrace.engine.kernels.library import CpuKernels

DEMO = Path(__file__).parents[3] / "models" / "demo"


@pytest.mark.parametrize(("block_size", "dtype"), [(16, torch.bfloat16), (8, torch.float32)])
def test_auto_is_as_stored_only_where_the_kernels_read_the_blocks(
    kernels: CpuKernels,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    args = EngineArgs(model=str(DEMO), device="cpu", cpu_threads=1, block_size=block_size, max_model_len=64)
    worker = Worker(args.create_engine_config())
    worker.start()
    assert worker.call(lambda held: held._dtype) is dtype
    worker.close()
