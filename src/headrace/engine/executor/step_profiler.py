"""Records what steps do with torch's profiler, into a trace that Perfetto opens. Bounded by a number of steps."""

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from headrace.errors import EngineError, UnsupportedError


class StepProfiler:
    """One worker's profiler. Start, steps and stop happen in one thread, the one that is recorded."""

    def __init__(self, directory: str | None, *, name: str, max_steps: int) -> None:
        self._directory = directory
        self._name = name
        self._max_steps = max_steps
        self._profile: profile | None = None
        self._num_steps = 0
        self._last_path: Path | None = None

    def __repr__(self) -> str:
        state = f"{self._num_steps} steps" if self._profile is not None else "off"
        return f"StepProfiler({self._directory!r}, {state})"

    @property
    def is_on(self) -> bool:
        return self._profile is not None

    def start(self) -> None:
        """Raises UnsupportedError where no directory is set, EngineError if it is on already."""
        if self._directory is None:
            message = "start_profile needs a directory for its traces; start the engine with profiler_dir"
            raise UnsupportedError(message, param="profiler_dir")
        if self._profile is not None:
            raise EngineError("a profile is being recorded already; call stop_profile first")
        Path(self._directory).mkdir(parents=True, exist_ok=True)
        has_cuda = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_cuda else [])]
        self._profile = profile(activities=activities)
        self._profile.start()
        self._num_steps = 0
        self._last_path = None

    def note_step(self) -> None:
        """A step is done; the last one that is allowed writes the trace."""
        if self._profile is None:
            return
        self._num_steps += 1
        if self._num_steps >= self._max_steps:
            self._write()

    def stop(self) -> str:
        """Write the trace, unless it has ended by itself; its path. Raises EngineError if none was started."""
        if self._profile is not None:
            self._write()
        if self._last_path is None:
            raise EngineError("no profile is being recorded; call start_profile first")
        return str(self._last_path)

    def _write(self) -> None:
        assert self._profile is not None
        assert self._directory is not None
        recorded, self._profile = self._profile, None
        recorded.stop()
        path = Path(self._directory) / f"{self._name}-{time.time_ns()}.pt.trace.json.gz"
        recorded.export_chrome_trace(str(path))
        self._last_path = path
