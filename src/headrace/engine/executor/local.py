"""The executor of one device: one worker in the core's own process."""

from collections.abc import Callable, Mapping, Sequence

from headrace.engine.config import EngineConfig
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.worker import Worker


class LocalExecutor:
    """See `Executor`."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(config, device_index=config.parallel.data_parallel_rank)

    def __repr__(self) -> str:
        return f"LocalExecutor({self._worker!r})"

    def start(self) -> int:
        return self._worker.start()

    def execute(self, plan: StepPlan) -> StepResult:
        return self._worker.execute(plan)

    def check(self) -> None:
        """A worker in this process cannot end without it."""

    def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,  # noqa: ARG002 - a call in this process cannot be interrupted
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        return [self._worker.call(method, args, kwargs)]

    def close(self) -> None:
        """Nothing outlives the process."""
