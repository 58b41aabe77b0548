"""Decode steps in static tensors give each request its usual tokens. What CUDA records is computed again here."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.executor.local import LocalExecutor
from headrace.engine.executor.worker import Worker
from headrace.engine.runner.static_decode import Record, Replay
from headrace.testing.core_driver import CoreDriver, add_request

PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(1 + 9 * index)] for index in range(7)]


class RecordingWorker(Worker):
    """As on CUDA, but a replay computes again."""

    num_recorded = 0

    def _recorder(self) -> Record:
        return self._record

    def _record(self, run: Replay) -> Replay:
        self.num_recorded += 1
        return run


class RecordingExecutor(LocalExecutor):
    def __init__(self, args: EngineArgs) -> None:
        config = args.create_engine_config()
        super().__init__(config)
        self._worker = self.worker = RecordingWorker(config)


@pytest.mark.parametrize("family", ["llama", "qwen2-window"])
def test_replayed_steps_give_transformers_tokens(family: str, make_reference: Callable[[str], Any]) -> None:
    reference = make_reference(family)
    args = EngineArgs(model=str(reference.directory), device="cpu", cpu_kernels="off", cpu_threads=1, block_size=4)
    executor = RecordingExecutor(args)
    driver = CoreDriver(EngineCore(args.create_engine_config(), executor))
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(str(index), prompt, max_tokens=6 + 3 * index))
        driver.step()
    tokens = driver.run()
    assert tokens == {str(i): reference.greedy(p, num_tokens=6 + 3 * i) for i, p in enumerate(PROMPTS)}
    assert 2 < executor.worker.num_recorded < 20
