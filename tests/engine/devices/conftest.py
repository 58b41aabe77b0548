"""Cores over several workers, in threads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engine.devices.thread_workers import ThreadWorkers

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.testing.core_driver import CoreDriver


@pytest.fixture
def make_shared() -> Iterator[Callable[..., CoreDriver]]:
    """A core whose model `size` workers share, each with one thread, with `EngineArgs` by keyword; and its driver."""
    with ExitStack() as cleanup:

        def make(directory: Path, *, size: int, **args: Any) -> CoreDriver:
            given = {"cpu_threads": 1, "device": "cpu", **args}
            config = EngineArgs(model=str(directory), tensor_parallel_size=size, **given).create_engine_config()
            executor = ThreadWorkers(config)
            cleanup.callback(executor.close)
            return CoreDriver(EngineCore(config, executor))

        yield make
