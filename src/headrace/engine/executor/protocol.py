"""The seam between the core, which decides, and whatever holds the model: this process, workers, other machines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.engine.core.step_plan import StepPlan, StepResult


class Executor(Protocol):
    """Runs plans in the order they come. A failure in any method but `collective_rpc` is final: the core does not call
    again, except `close`."""

    def start(self) -> int:
        """Load the model, make its KV cache and warm up (blocking); the number of blocks of the cache.

        Raises SettingsError for what the hardware or the checkpoint cannot do.
        """
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step (blocking)."""
        ...

    def check(self) -> None:
        """Raises EngineError, with the cause, when a worker has ended by itself. Called now and then while idle."""
        ...

    def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        """Call a worker's method by name, or a function with the worker first, on every worker (blocking).

        The results in the order of the workers' ranks. Raises what a worker raises, TimeoutError after `timeout_s`.
        """
        ...

    def close(self) -> None:
        """End what the executor started: no process or shared memory of it is left. Idempotent."""
        ...
