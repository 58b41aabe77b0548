"""What `headrace bench --json` prints."""

import msgspec

from headrace.cli.benchmarks.chats import ChatReport
from headrace.cli.benchmarks.loop import LagRow
from headrace.cli.benchmarks.machine import Machine
from headrace.cli.benchmarks.memory import MemoryReport
from headrace.cli.benchmarks.rounds import Row
from headrace.cli.benchmarks.worst_cases import WorstCaseRow


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run. What was not measured is None."""

    benchmark: str
    tokenizer: str
    is_quick: bool
    num_rounds: int
    machine: Machine
    elapsed_s: float
    rows: list[Row] | None = None
    chats: ChatReport | None = None
    memory: MemoryReport | None = None
    worst_cases: list[WorstCaseRow] | None = None
    lag: list[LagRow] | None = None
    notes: list[str] = []
    """What is not there, and why."""
