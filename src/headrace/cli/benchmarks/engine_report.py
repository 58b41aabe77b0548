"""What `headrace bench engine --json` prints."""

import msgspec

from headrace.cli.benchmarks.engine_bars import BarResult, EngineResult
from headrace.cli.benchmarks.machine import Machine


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    benchmark: str = "engine"
    model: str
    is_quick: bool
    num_rounds: int
    core: int | None
    """The one that every engine ran on."""
    machine: Machine
    elapsed_s: float
    engines: list[EngineResult]
    bars: list[BarResult]
    notes: list[str]
    """What is not there, and why."""
