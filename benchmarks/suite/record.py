"""What is kept of a run of the benchmarks: one JSON file each in `benchmarks/results/`. Knows no benchmark by name."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from headrace.cli.benchmarks.machine import Machine
from headrace.errors import HeadraceError

VERSION: Literal[1] = 1
_QUICK = "-quick"


class RecordError(HeadraceError):
    """A file of results cannot be read."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one contender did: medians over the rounds, and the extremes where they are known."""

    name: str
    median: float
    lowest: float | None = None
    highest: float | None = None
    is_ours: bool = False


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured of several contenders in turns. The first value that is ours is compared."""

    key: str
    """Unique in its benchmark; names a plot."""
    title: str
    unit: str
    is_higher_better: bool
    values: list[Value]

    @property
    def ours(self) -> Value | None:
        return next((value for value in self.values if value.is_ours), None)

    def times_better(self, peer: Value) -> float | None:
        """How many times better ours is than `peer`; below 1 where it is worse, None where there is no saying."""
        ours = self.ours
        if ours is None or ours.median <= 0 or peer.median <= 0:
            return None
        return ours.median / peer.median if self.is_higher_better else peer.median / ours.median


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that ours is to keep."""

    title: str
    limit: float
    is_at_least: bool
    unit: str
    """`x` for a ratio."""
    value: float | None
    """None where something that it needs is missing."""

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.is_at_least else self.value <= self.limit


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the run."""

    name: str
    command: str
    elapsed_s: float
    load: float
    """Of the machine before it."""
    error: str | None = None
    """Why there are no figures."""
    about: str = ""
    notes: list[str] = []
    """What is missing, and why."""
    figures: list[Figure] = []
    bars: list[Bar] = []


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    version: Literal[1] = VERSION
    begun_at: str
    """UTC, as 2026-11-21T16:30:00Z."""
    commit: str
    is_dirty: bool
    """Whether the working tree differed from the commit."""
    is_quick: bool
    machine: Machine
    elapsed_s: float
    benchmarks: list[Benchmark]


def file_name(run: Run) -> str:
    """Sorts by time."""
    time = run.begun_at.replace("-", "").replace(":", "").rstrip("Z")
    return f"{time}-{run.commit[:10]}{_QUICK if run.is_quick else ''}.json"


def write(run: Run, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(run)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def read(path: Path) -> Run:
    """Raises RecordError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path} is no file of results of version {VERSION}: {error}") from error


def full_runs(folder: Path) -> list[Run]:
    """Those that were not quick, the newest first. Raises RecordError."""
    paths = sorted(folder.glob("*.json"), reverse=True)
    return [read(path) for path in paths if not path.stem.endswith(_QUICK)]


def newest_of_each(runs: Iterable[Run], names: Sequence[str]) -> list[tuple[Run, Benchmark]]:
    """In the order of `names`: for each the newest run that has it. Ratios are within one benchmark of one run, so that
    one may be measured again without the others."""
    found: dict[str, tuple[Run, Benchmark]] = {}
    for run in runs:
        for benchmark in run.benchmarks:
            found.setdefault(benchmark.name, (run, benchmark))
    return [found[name] for name in names if name in found]
