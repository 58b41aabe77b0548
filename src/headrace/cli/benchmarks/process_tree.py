"""A process and all that it started: signals to them, the memory they took, the end of them. Reads Linux's /proc.

Elsewhere the tree is the process alone, and its memory is not known.
"""

import os
import re
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def tree_of(pid: int) -> list[int]:
    """`pid` and its descendants, parents first."""
    children = defaultdict(list)
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            children[_parent_in(stat.read_text())].append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def births_of(pids: Sequence[int]) -> dict[int, str]:
    """When each of them started, in the system's own count: a process id may come back as another process."""
    births = {}
    for pid in pids:
        with suppress(OSError):
            births[pid] = _fields((_PROC / str(pid) / "stat").read_text())[19]
    return births


def kill(births: Mapping[int, str]) -> None:
    """Kill those that still are the processes that they were; see `births_of`."""
    for pid in [pid for pid, birth in births_of(list(births)).items() if birth == births[pid]]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parent_in(stat: str) -> int:
    return int(_fields(stat)[1])


def _fields(stat: str) -> list[str]:
    """Those after the second, which is a name in parentheses that may hold anything."""
    return stat.rpartition(")")[2].split()


def send(pid: int, signal_number: signal.Signals) -> None:
    """Send a signal to the whole tree; those that are gone are passed over."""
    for one in tree_of(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal_number)


def peak_bytes(pid: int) -> int | None:
    """Sum of the most that each process of the tree ever had resident.

    An upper bound: the peaks may have come at different times, and what processes share is counted for each.
    """
    peaks = [_peak_in(one) for one in tree_of(pid)]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def _peak_in(pid: int) -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (_PROC / str(pid) / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
