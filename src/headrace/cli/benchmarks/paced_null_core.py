"""The core of `null_core` with steps of 5 ms in which the processor is free, as it is while a device computes."""

import sys

from headrace.cli.benchmarks.null_core import NullExecutor
from headrace.engine.config import EngineConfig
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.core.process import run_core_process

STEP_S = 0.005


def _build(config: EngineConfig) -> EngineCore:
    return EngineCore(config, executor=NullExecutor(config, step_s=STEP_S))


if __name__ == "__main__":
    sys.exit(run_core_process(int(sys.argv[1]), build_core=_build))
