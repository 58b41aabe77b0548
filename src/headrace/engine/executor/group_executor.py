"""The executor of several workers, whatever starts them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.engine.config import EngineConfig
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.executor.worker_group import GroupMember, WorkerGroup
from headrace.engine.executor.worker_wire import Launch
from headrace.engine.wire.remote_call import RemoteCall


class WorkerStarter(Protocol):
    """Starts the workers of one core, once."""

    def start(self, config: EngineConfig) -> list[tuple[GroupMember, Launch]]:
        """Start them, in the order of their ranks; each waits for its `Launch` (blocking).

        Raises EngineError when one cannot be started; `close` then ends the others.
        """
        ...

    def close(self) -> None:
        """Release whatever the starter itself holds, after the workers have ended. Idempotent."""
        ...


class GroupExecutor:
    """See `Executor`. A step costs one message to each worker and one back; this process needs no torch."""

    def __init__(self, config: EngineConfig, *, starter: WorkerStarter) -> None:
        self._config = config
        self._starter = starter
        self._group: WorkerGroup | None = None

    def __repr__(self) -> str:
        return f"GroupExecutor({self._starter!r}, {self._group!r})"

    def start(self) -> int:
        workers = self._starter.start(self._config)
        self._group = WorkerGroup(
            [member for member, _ in workers], step_timeout_s=self._config.parallel.worker_timeout_s
        )
        return self._group.launch([launch for _, launch in workers])

    def execute(self, plan: StepPlan) -> StepResult:
        return self._workers.execute(plan)

    def check(self) -> None:
        self._workers.check()

    def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        call = RemoteCall(method=method, timeout_s=timeout_s, args=args, kwargs=kwargs or {})
        return self._workers.call(call)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._starter.close()

    @property
    def _workers(self) -> WorkerGroup:
        assert self._group is not None, "start() comes first"
        return self._group
