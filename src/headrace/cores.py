"""How many processor cores this process may use: a container's limit counts, which `os.cpu_count` does not know."""

import os
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""What Linux lets the processes of a container have together: `QUOTA PERIOD` in microseconds, `max` for no limit
(https://docs.kernel.org/admin-guide/cgroup-v2.html)."""


def num_cores() -> int:
    """At least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _num_cores_of(_text_of(_CPU_MAX)) or allowed))


def _num_cores_of(cpu_max: str) -> int | None:
    """Whole cores of a limit, at least 1; None where it is none."""
    match cpu_max.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return max(1, int(quota) // int(period))
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
