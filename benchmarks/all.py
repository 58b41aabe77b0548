"""`make bench`: every benchmark, one after the other; one file of results; the page and its pictures made of them.

    .venv/bin/python -m benchmarks.all [--quick] [--only NAMES] [--page-only]

A benchmark that fails, or a peer that is missing, stands in the results and stops nothing. `--quick` shows whether all
of it works, in less than five minutes, and leaves the page alone: its figures mean nothing.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.suite import page
from benchmarks.suite.entries import ENTRIES, REPOSITORY, Entry
from benchmarks.suite.plots import plots_of
from benchmarks.suite.record import Benchmark, Run, full_runs, newest_of_each, write
from benchmarks.suite.runner import Command, CommandError, run
from benchmarks.suite.summary import Summary
from headrace.cli.benchmarks import machine

RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "benchmarks.md"
PICTURES = REPOSITORY / "docs" / "benchmarks"


def measure(entries: Sequence[Entry], *, is_quick: bool) -> Run:
    """Run them all (blocking)."""
    begun_at, begun_s, found = datetime.now(UTC), time.monotonic(), machine.describe()
    measured = []
    for number, entry in enumerate(entries, 1):
        say(f"[{number}/{len(entries)}] {entry.name}: {entry.title}")
        measured.append(measure_one(entry, is_quick=is_quick))
        last = measured[-1]
        say(f"    {last.elapsed_s:.0f} s{'' if last.error is None else f'; IT FAILED: {last.error}'}")
    return Run(
        begun_at=begun_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        commit=_git("rev-parse", "HEAD") or "unknown",
        is_dirty=bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")),
        is_quick=is_quick,
        machine=found,
        elapsed_s=time.monotonic() - begun_s,
        benchmarks=measured,
    )


def measure_one(entry: Entry, *, is_quick: bool) -> Benchmark:
    """Its figures, or why there are none."""
    load, begun_s = round(os.getloadavg()[0], 2), time.monotonic()
    argv = entry.argv(is_quick=is_quick)
    summary, error = Summary(), None
    try:
        command = Command(argv=argv, folder=REPOSITORY, timeout_s=entry.deadline_s(is_quick=is_quick))
        summary = entry.summarize(run(command))
    except CommandError as failed:
        error = failed.message
    except msgspec.MsgspecError as unreadable:
        error = f"its output is not what it should be: {unreadable}"
    return Benchmark(
        name=entry.name,
        command=_shown(argv),
        elapsed_s=round(time.monotonic() - begun_s, 1),
        load=load,
        error=error,
        about=summary.about,
        notes=[_without_home(note) for note in summary.notes],
        figures=summary.figures,
        bars=summary.bars,
    )


def write_page(*, results: Path = RESULTS, path: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Make the page's results, and its pictures, of the newest full run of each benchmark."""
    text, files = rendered(results, pictures=pictures.name)
    pictures.mkdir(exist_ok=True)
    for stale in pictures.glob("*.svg"):
        if stale.name not in files:
            stale.unlink()
    for name, svg in files.items():
        (pictures / name).write_text(svg, encoding="utf-8")
    path.write_text(page.with_results(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def rendered(results: Path, *, pictures: str) -> tuple[str, dict[str, str]]:
    """The page's results, and SVG by the name of its file."""
    measured = newest_of_each(full_runs(results), [entry.name for entry in ENTRIES])
    files: dict[str, str] = {}
    paths: dict[str, list[str]] = {}
    for _, benchmark in measured:
        found = plots_of(benchmark)
        files |= found
        paths[benchmark.name] = [f"{pictures}/{name}" for name in found]
    return page.results(measured, titles={entry.name: entry.title for entry in ENTRIES}, plots=paths), files


def _shown(argv: Sequence[str]) -> str:
    """As somebody would type it."""
    words = ["headrace" if word == "headrace.cli.main" else word for word in argv]
    words = [word for word in words if word not in {"-m", "--json"}]
    if words[0] == sys.executable:
        words = words[1:] if words[1] == "headrace" else ["python", *words[1:]]
    return shlex.join(word.replace(f"{REPOSITORY}/", "").replace(f"{REPOSITORY.parent}/", "../") for word in words)


def _without_home(text: str) -> str:
    return text.replace(str(REPOSITORY), ".").replace(str(Path.home()), "~")


def _git(*arguments: str) -> str:
    """What git says; nothing where there is none."""
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 1 when a benchmark failed; missed bars are results, not failures."""
    names = [entry.name for entry in ENTRIES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small and few: to see that it works")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"of {','.join(names)}; the page keeps the others")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write the page from what is stored")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where results are stored")
    arguments = parser.parse_args(argv)
    wanted = [name.strip() for name in arguments.only.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    if arguments.page_only:
        write_page(results=arguments.results)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the benchmark too
    done = measure([entry for entry in ENTRIES if not wanted or entry.name in wanted], is_quick=arguments.quick)
    say(f"written: {write(done, arguments.results)}, {done.elapsed_s:.0f} s in all")
    if done.is_quick:
        _show(done)
    elif arguments.results == RESULTS:
        write_page()
        say(f"written: {PAGE}")
    return 1 if any(benchmark.error is not None for benchmark in done.benchmarks) else 0


def _show(run: Run) -> None:
    """What the page would say."""
    measured = [(run, benchmark) for benchmark in run.benchmarks]
    print(page.results(measured, titles={entry.name: entry.title for entry in ENTRIES}, plots={}))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
