import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from benchmarks import all as suite
from benchmarks.suite import page
from benchmarks.suite.entries import ENTRIES, Entry
from benchmarks.suite.plots import PLOTTED, plots_of
from benchmarks.suite.record import (
    Bar,
    Benchmark,
    Figure,
    RecordError,
    Run,
    Value,
    full_runs,
    newest_of_each,
    read,
    write,
)
from benchmarks.suite.runner import Command, CommandError, run
from benchmarks.suite.summaries import tokenization
from benchmarks.suite.summary import Summary
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.benchmarks.machine import Machine
from headrace.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
MACHINE = Machine(cpu="A CPU", num_cores=2, load=0.5, system="Linux 6", python="3.11", packages={})

RATE = Figure(
    key="rate",
    title="chats of 2 KiB",
    unit="requests/s",
    is_higher_better=True,
    values=[
        Value(name="headrace", median=1500.0, lowest=1400.0, highest=1600.0, is_ours=True),
        Value(name="slow-router", median=1000.0),
        Value(name="fast|router", median=3000.0),
    ],
)
IDLE = Figure(
    key="idle",
    title="resident, idle",
    unit="MB",
    is_higher_better=False,
    values=[Value(name="headrace", median=80.0, is_ours=True), Value(name="slow-router", median=120.0)],
)
BARS_OF_ALL_KINDS = [
    Bar(title="rate over slow-router", limit=1.5, is_at_least=True, unit="x", value=1.5),
    Bar(title="rate over fast-router", limit=1.0, is_at_least=True, unit="x", value=0.5),
    Bar(title="idle", limit=90.0, is_at_least=False, unit="MB", value=None),
]
GATEWAY = Benchmark(
    name="gateway",
    command="headrace bench gateway",
    elapsed_s=90.5,
    load=0.25,
    about="one core",
    notes=["litellm is not installed: make peers"],
    figures=[RATE, IDLE],
    bars=BARS_OF_ALL_KINDS,
)
FAILED = Benchmark(name="engine", command="headrace bench engine", elapsed_s=1.0, load=0.5, error="it ended with 1: no")

GOLDEN = """\
Bars: 1 met, 1 missed, 1 not measured.

Missed:

- gateway, rate over fast-router: 0.5 x, limit >= 1 x

Where others are better, and how many times:

- gateway, chats of 2 KiB: fast\\|router 2 x

Failed:

- engine: it ended with 1: no

### The engine

`headrace bench engine`, 2026-11-21, commit 0123456789; A CPU, 2 cores, load 0.5 before, Python 3.11; 1 s.

It failed: it ended with 1: no

### The gateway

`headrace bench gateway`, 2026-11-21, commit 0123456789; A CPU, 2 cores, load 0.25 before, Python 3.11; 90 s. one core.

| | Headrace | how many times better than the others |
|---|---|---|
| chats of 2 KiB | 1,500 (1,400 to 1,600) requests/s | 1.5 x slow-router (1,000)<br>**0.5 x** fast\\|router (3,000) |
| resident, idle | 80 MB | 1.5 x slow-router (120) |

| bar | limit | measured | |
|---|---|---|---|
| rate over slow-router | >= 1.5 x | 1.5 x | met |
| rate over fast-router | >= 1 x | 0.5 x | **missed** |
| idle | <= 90 MB | - | not measured |

litellm is not installed: make peers

![gateway](benchmarks/gateway-rate.svg)"""


def run_of(*benchmarks: Benchmark, begun_at: str = "2026-11-21T16:00:00Z", is_quick: bool = False) -> Run:
    return Run(
        begun_at=begun_at,
        commit="0123456789abcdef",
        is_dirty=False,
        is_quick=is_quick,
        machine=MACHINE,
        elapsed_s=91.5,
        benchmarks=list(benchmarks),
    )


# the page


def test_the_page_says_what_is_stored_with_losses_first(tmp_path: Path) -> None:
    write(run_of(FAILED, GATEWAY), tmp_path)
    (stored,) = full_runs(tmp_path)
    measured = newest_of_each([stored], ["engine", "gateway"])
    titles = {"engine": "The engine", "gateway": "The gateway"}
    plots = {"gateway": ["benchmarks/gateway-rate.svg"]}
    assert page.results(measured, titles=titles, plots=plots) == GOLDEN


def test_the_page_of_this_repository_is_made_of_its_results() -> None:
    text, files = suite.rendered(suite.RESULTS, pictures=suite.PICTURES.name)
    stored = suite.PAGE.read_text(encoding="utf-8")
    assert page.with_results(stored, text) == stored, "run python -m benchmarks.all --page-only"
    assert {path.name: path.read_text(encoding="utf-8") for path in suite.PICTURES.glob("*.svg")} == files


def test_only_what_is_between_the_marks_is_written_anew() -> None:
    before = f"# A page\n\n{page.BEGIN}\n\nold\n\n{page.END}\n\nThe end.\n"
    assert page.with_results(before, "new\n") == before.replace("old", "new")
    with pytest.raises(ValueError, match="the page has no"):
        page.with_results("# A page without marks\n", "new")


def test_writing_the_page_removes_pictures_of_what_is_not_there_any_more(tmp_path: Path) -> None:
    write(run_of(msgspec.structs.replace(GATEWAY, figures=[msgspec.structs.replace(RATE, key="small-rate")])), tmp_path)
    path, pictures = tmp_path / "page.md", tmp_path / "benchmarks"
    path.write_text(f"{page.BEGIN}\n{page.END}\n")
    pictures.mkdir()
    (pictures / "gateway-gone.svg").write_text("<svg/>")
    suite.write_page(results=tmp_path, path=path, pictures=pictures)
    assert [one.name for one in pictures.iterdir()] == ["gateway-small-rate.svg"]
    assert "](benchmarks/gateway-small-rate.svg)" in path.read_text()


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.booleans())
def test_ours_is_better_than_a_peer_exactly_where_the_ratio_is_above_one(
    ours: int, theirs: int, is_higher_better: bool
) -> None:
    values = [Value(name="ours", median=ours, is_ours=True), Value(name="peer", median=theirs)]
    figure = Figure(key="k", title="t", unit="u", is_higher_better=is_higher_better, values=values)
    ratio = figure.times_better(values[1])
    assert ratio is not None
    assert (ratio > 1) == ((ours > theirs) if is_higher_better else (ours < theirs))


def test_a_peer_without_a_time_has_no_ratio() -> None:
    peer = Value(name="peer", median=0.0)
    assert RATE.times_better(peer) is None


# pictures


def test_pictures_stand_by_themselves_and_have_every_contender() -> None:
    figure = msgspec.structs.replace(RATE, key=PLOTTED["gateway"][0], title="a < b & c")
    ((name, svg),) = plots_of(msgspec.structs.replace(GATEWAY, figures=[figure])).items()
    root = ET.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert name == "gateway-small-rate.svg"
    assert texts[:2] == ["a < b & c, requests/s (more is better)", "headrace"]
    assert {"slow-router", "fast|router", "3,000"} <= set(texts)


def test_what_nobody_else_did_has_no_picture() -> None:
    alone = msgspec.structs.replace(RATE, key=PLOTTED["gateway"][0], values=RATE.values[:1])
    assert plots_of(msgspec.structs.replace(GATEWAY, figures=[alone])) == {}


# files of results


def test_a_benchmark_that_was_measured_again_alone_is_the_newest_of_its_own(tmp_path: Path) -> None:
    write(run_of(FAILED, GATEWAY), tmp_path)
    write(run_of(msgspec.structs.replace(FAILED, error=None), begun_at="2026-11-22T01:00:00Z"), tmp_path)
    write(run_of(FAILED, GATEWAY, begun_at="2026-11-23T01:00:00Z", is_quick=True), tmp_path)
    found = newest_of_each(full_runs(tmp_path), ["gateway", "engine", "start"])
    assert [(run.begun_at, one.name, one.error) for run, one in found] == [
        ("2026-11-21T16:00:00Z", "gateway", None),
        ("2026-11-22T01:00:00Z", "engine", None),
    ]


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = write(run_of(GATEWAY), tmp_path)
    assert read(path) == run_of(GATEWAY)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(RecordError, match=path.name):
        read(path)


# running


def command(code: str, *, timeout_s: float = 20.0) -> Command:
    return Command(argv=[sys.executable, "-c", textwrap.dedent(code)], folder=ROOT, timeout_s=timeout_s)


def entry(code: str, summarize: Callable[[bytes], Summary]) -> Entry:
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    return Entry(name="an entry", title="An entry", command=argv, summarize=summarize)


@pytest.mark.integration
def test_what_a_benchmark_prints_comes_back_and_what_it_tells_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(command("import sys; print('progress', file=sys.stderr); print('{}')")) == b"{}\n"
    assert capfd.readouterr().err == "progress\n"


@pytest.mark.integration
def test_a_benchmark_that_fails_is_noted_with_its_last_words() -> None:
    failing = entry("import sys; print('no such model', file=sys.stderr); sys.exit(2)", lambda _: Summary())
    found = suite.measure_one(failing, is_quick=True)
    assert found.error == "it ended with 2: no such model"
    assert found.figures == []


@pytest.mark.integration
def test_a_benchmark_that_takes_too_long_is_ended() -> None:
    with pytest.raises(CommandError, match=r"not done within 0\.2 s"):
        run(command("import time; time.sleep(100)", timeout_s=0.2))


INTERRUPTED = """
import signal, sys
from pathlib import Path
from benchmarks.suite.runner import Command, run

signal.signal(signal.SIGTERM, signal.default_int_handler)
child = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}.'); time.sleep(100)"
run(Command(argv=[sys.executable, "-c", child, sys.argv[1]], folder=Path(), timeout_s=100.0))
"""


@pytest.mark.integration
def test_a_run_that_is_ended_ends_the_benchmark_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    argv = [sys.executable, "-c", INTERRUPTED, str(pid_file)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("."))
        process.terminate()
        process.wait(timeout=20)
    pid = int(pid_file.read_text().rstrip("."))
    wait_until(lambda: not is_running(pid))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be so within 20 s"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.integration
def test_output_that_is_no_report_is_an_error_of_that_benchmark() -> None:
    found = suite.measure_one(entry("print('[]')", tokenization.summarize), is_quick=True)
    assert (found.error or "").startswith("its output is not what it should be")


@pytest.mark.integration
def test_a_run_has_what_was_measured_and_the_commit() -> None:
    summary = Summary(figures=[RATE], notes=[f"in {Path.home()}/.cache"])
    done = suite.measure([entry("print('{}')", lambda _: summary)], is_quick=True)
    (found,) = done.benchmarks
    assert (found.figures, found.notes, found.error) == ([RATE], ["in ~/.cache"], None)
    assert done.commit
    assert str(ROOT) not in msgspec.json.encode(done).decode()


@pytest.mark.slow
@pytest.mark.integration
def test_a_quick_run_of_one_benchmark_measures_and_stores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suite.main(["--quick", "--only", "front", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-quick.json")
    (found,) = read(path).benchmarks
    assert [figure.unit for figure in found.figures] == ["tokens/s"] * 4
    assert "deltas of text" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.integration
def test_the_server_is_measured_beside_its_engine(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "server", "--quick", "--streams", "8", "--json", "--model", str(DEMO)]) == 0
    figures = json.loads(capfd.readouterr().out)["figures"]
    assert all(figures[name]["median"] > 0 for name in ("rate", "events", "tokens", "direct_p50", "http_p50"))


def test_a_name_that_is_none_of_the_benchmarks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        suite.main(["--only", "nothing"])
    assert exited.value.code == 2
    assert "unknown: nothing; there are tokenization, loop, engine" in capsys.readouterr().err


def test_every_entry_is_a_command_that_there_is() -> None:
    for one in ENTRIES:
        benchmark = one.name.removesuffix("-memory")
        *_, name = [word for word in one.command if word.endswith(".py") or word in {"bench", benchmark}]
        assert Path(name).is_file() or name == benchmark, one
    assert set(PLOTTED) <= {one.name for one in ENTRIES}
