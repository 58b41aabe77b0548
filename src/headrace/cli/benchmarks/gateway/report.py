"""What `headrace bench gateway --json` prints."""

import msgspec

from headrace.cli.benchmarks.gateway.figures import BarResult, Row
from headrace.cli.benchmarks.machine import Machine


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    machine: Machine
    tokenizer: str
    is_quick: bool
    num_rounds: int
    gateway_core: int
    load_core: int
    versions: dict[str, str]
    rows: list[Row]
    bars: list[BarResult]
    notes: list[str]
    elapsed_s: float
