"""What an engine's own /metrics say of its load, and whether it is still the process that it was. Pure.

Theory. Of the requests that an engine reports, those of this gateway are known here, exactly and at once; only the rest
is news: requests of other gateways, or of clients that go past all of them. Both counts move while the question is on
its way, so the rest is noisy by a few, and noise would scatter choices that gateways make alike; therefore of two
reports in a row the smaller rest counts. A report counts until the next probe, good or bad.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_MAX_BYTES = 1 << 20
_NAMES = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:kv_cache_usage_perc": "usage",
    b"vllm:gpu_cache_usage_perc": "usage",  # its older name
    b"vllm:prompt_tokens_total": "prompt_tokens",
    b"sglang:num_running_reqs": "running",
    b"sglang:num_queue_reqs": "waiting",
    b"sglang:token_usage": "usage",
    b"sglang:prompt_tokens_total": "prompt_tokens",
    b"process_start_time_seconds": "started",
}
_SAMPLE = re.compile(rb"^(" + rb"|".join(map(re.escape, _NAMES)) + rb")(?:\{[^\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)
_CLOCK_DRIFT_S = 2.0
_STEADY_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLoad:
    """One report, all ranks of the engine together."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float | None = None
    """Part of its cache in use, of the fullest rank, 0 to 1."""
    num_prompt_tokens: float | None = None
    """Since its start."""
    started_s: float | None = None
    """When its process started, in seconds since the epoch."""

    @property
    def num_requests(self) -> int:
        """In hand, running or waiting."""
        return self.num_running + self.num_waiting


def read_load(exposition: bytes) -> ReportedLoad | None:
    """The load in a Prometheus exposition of vLLM, SGLang or Headrace; None where it does not tell."""
    if len(exposition) > _MAX_BYTES:
        return None
    sums: dict[str, float] = {}
    usages: list[float] = []
    for name, text in _SAMPLE.findall(exposition):
        what, value = _NAMES[name], _number(text)
        if value is None:
            continue
        if what == "usage":
            usages.append(value)
        sums[what] = sums.get(what, 0.0) + value
    if "running" not in sums:
        return None
    return ReportedLoad(
        num_running=max(0, int(sums["running"])),
        num_waiting=max(0, int(sums.get("waiting", 0.0))),
        kv_cache_usage=max(usages, default=None),
        num_prompt_tokens=sums.get("prompt_tokens"),
        started_s=sums.get("started"),
    )


class Elsewhere:
    """How many requests an endpoint has in hand that did not come from here."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._last: int | None = None

    def note(self, load: ReportedLoad, *, num_own: int) -> None:
        """A report, and the most requests of our own that were in flight while it was asked for."""
        rest = max(0, load.num_requests - num_own)
        self.num_requests = 0 if self._last is None else min(rest, self._last)
        self._last = rest

    def forget(self) -> None:
        """No report came; what the last one said is old."""
        self.num_requests = 0
        self._last = None

    def __repr__(self) -> str:
        return f"Elsewhere(num_requests={self.num_requests})"


class StartMarks:
    """Notices that an engine has been started anew, by any mark that it shows.

    A mark of the model list's `created` counts only when it held still for a while: vLLM writes the present time there.
    """

    def __init__(self) -> None:
        self._started_s: float | None = None
        self._num_prompt_tokens: float | None = None
        self._created: Mapping[str, int] = {}
        self._created_since_s = 0.0

    def note_load(self, load: ReportedLoad) -> bool:
        """Whether this report is of another process than the last."""
        started, num_prompt_tokens = self._started_s, self._num_prompt_tokens
        self._started_s, self._num_prompt_tokens = load.started_s, load.num_prompt_tokens
        if started is not None and load.started_s is not None and abs(load.started_s - started) > _CLOCK_DRIFT_S:
            return True
        return (
            num_prompt_tokens is not None
            and load.num_prompt_tokens is not None
            and load.num_prompt_tokens < num_prompt_tokens
        )

    def note_created(self, created: Mapping[str, int], *, now: float) -> bool:
        """Whether `created` of all models that were there before has changed, after it had been steady."""
        if created == self._created:
            return False
        kept = created.keys() & self._created.keys()
        are_new = bool(kept) and all(created[model] != self._created[model] for model in kept)
        was_steady = now - self._created_since_s >= _STEADY_S
        self._created, self._created_since_s = created, now
        return are_new and was_steady

    def __repr__(self) -> str:
        return f"StartMarks(started_s={self._started_s}, num_created={len(self._created)})"


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
