"""Workers that share a model, as threads of this process: the same layers and shares as in processes, without them."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from headrace.engine.config import EngineConfig
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.worker import Worker

ResultT = TypeVar("ResultT")

_TIMEOUT_S = 20.0


class ThreadGroup:
    """A `Parallel` for each of `size` threads; adds up in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_sums = 0
        self._barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self._partials: list[torch.Tensor | None] = [None] * size

    def seat(self, rank: int, _device: torch.device) -> "ThreadSeat":
        return ThreadSeat(self, rank)

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """All workers' tensors, by rank."""
        self._partials[rank] = tensor
        self._barrier.wait()
        tensors = [partial.clone() for partial in self._partials if partial is not None]
        self._barrier.wait()
        self.num_sums += rank == 0
        return tensors


class ThreadSeat:
    """See `Parallel`."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank = rank
        self.size = group.size
        self._group = group

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        first, *others = self._group.exchange(self.rank, partial)
        for other in others:
            first += other
        return first

    def least(self, value: int) -> int:
        return min(int(tensor) for tensor in self._group.exchange(self.rank, torch.tensor(value)))

    def close(self) -> None:
        """Nothing to leave."""


class ThreadWorkers:
    """An `Executor`. The first worker draws, the others are told, as `WorkerGroup` does it."""

    def __init__(self, config: EngineConfig) -> None:
        size = config.parallel.tensor_parallel_size
        self.group = ThreadGroup(size)
        self.workers = [Worker(config, join_group=functools.partial(self.group.seat, rank)) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)
        self._drawn: dict[str, int] = {}

    def start(self) -> int:
        return self._on_all(lambda _, worker: worker.start())[0]

    def execute(self, plan: StepPlan) -> StepResult:
        drawn = self._drawn
        first = self._on_all(lambda rank, worker: worker.execute(plan) if rank == 0 else worker.follow(plan, drawn))[0]
        assert isinstance(first, StepResult)
        self._drawn = dict(first.token_ids)
        return first

    def check(self) -> None:
        """A thread that failed has said so already."""

    def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        return self._on_all(lambda _, worker: worker.call(method, args, kwargs))

    def close(self) -> None:
        self._threads.shutdown()

    def _on_all(self, func: Callable[[int, Worker], ResultT]) -> list[ResultT]:
        futures: list[Future[ResultT]] = [
            self._threads.submit(func, rank, worker) for rank, worker in enumerate(self.workers)
        ]
        return [future.result(_TIMEOUT_S) for future in futures]
