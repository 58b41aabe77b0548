"""The seam between the core, which decides, and whatever holds the model: this process, workers, other machines."""

from collections.abc import Mapping
from typing import Protocol

from headrace.engine.step_plan import StepPlan


class Executor(Protocol):
    """Runs plans in the order they come. A failure in any method is final: the core does not call again."""

    def start(self) -> int:
        """Load the model, make its KV cache and warm up (blocking); the number of blocks of the cache.

        Raises SettingsError for what the hardware or the checkpoint cannot do.
        """
        ...

    def execute(self, plan: StepPlan) -> Mapping[str, int]:
        """Run one step (blocking); the token drawn for each scheduled request with `is_sampled`."""
        ...
