"""An engine core that computes nothing: the real scheduler and KV cache over an executor that makes up each token.

Run as the core's process (`ProcessHost(module="headrace.cli.benchmarks.null_core")`). Needs no torch. See also
`paced_null_core`.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from headrace.engine.config import EngineConfig
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.core.process import run_core_process
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.errors import UnsupportedError

_FIRST_ID, _END_ID = 300, 812
"""Ordinary tokens in the vocabulary of any model."""


class NullExecutor:
    """The same token for every request of a step, another in the next. See `Executor`.

    Each step leaves the core idle for `step_s`, as it is while a device computes.
    """

    def __init__(self, config: EngineConfig, *, step_s: float = 0.0) -> None:
        scheduler, block_size = config.scheduler, config.cache.block_size
        self._num_blocks = scheduler.max_num_seqs * (scheduler.max_model_len // block_size + 1)
        self._num_steps = 0
        self._step_s = step_s
        self._never = threading.Event()

    def __repr__(self) -> str:
        return f"NullExecutor({self._num_steps} steps)"

    def start(self) -> int:
        return self._num_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        self._num_steps += 1
        if self._step_s:
            self._never.wait(self._step_s)
        token_id = _FIRST_ID + self._num_steps % (_END_ID - _FIRST_ID)
        sampled = [request.request_id for request in plan.scheduled if request.is_sampled]
        return StepResult(token_ids=dict.fromkeys(sampled, token_id))

    def check(self) -> None:
        """Nothing can end."""

    def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,  # noqa: ARG002 - see Executor
        args: Sequence[object] = (),  # noqa: ARG002
        kwargs: Mapping[str, object] | None = None,  # noqa: ARG002
    ) -> list[object]:
        raise UnsupportedError(f"a core without a model has no worker to call {method!r} on", param="method")

    def close(self) -> None:
        """Nothing outlives the process."""


def _build(config: EngineConfig) -> EngineCore:
    return EngineCore(config, executor=NullExecutor(config))


if __name__ == "__main__":
    sys.exit(run_core_process(int(sys.argv[1]), build_core=_build))
