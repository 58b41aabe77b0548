import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from headrace.cli.benchmarks import machine, process_tree
from headrace.cli.benchmarks.engine_bars import BARS, OURS, Bar, EngineResult, check
from headrace.cli.benchmarks.engine_child import Ids
from headrace.cli.benchmarks.engine_measures import SLOTS, Spread, Workload, num_matching, spread
from headrace.cli.benchmarks.engine_peers import converted_path, installed_peers, reference_of
from headrace.cli.benchmarks.engine_process import EngineProcess, EngineProcessError, EngineSpec, Generation, convert
from headrace.cli.benchmarks.engine_report import EngineReport
from headrace.cli.benchmarks.engine_tables import show
from headrace.cli.benchmarks.front import FrontReport
from headrace.cli.main import main
from headrace.errors import SettingsError
from headrace.testing.tiny_model import write_tiny_model

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"

ECHO = """
class Echo:
    has_prefix_cache = False

    def generate(self, prompts, num_tokens, on_token):
        print("a library that prints")
        on_token()
        return [[prompt[0] + step for step in range(num_tokens)] for prompt in prompts]

    def close(self):
        pass

def load(model, options):
    return Echo()
"""
DIES = """
import os, sys

class Dies:
    has_prefix_cache = True

    def generate(self, prompts, num_tokens, on_token):
        if num_tokens > 1:
            print("out of something", file=sys.stderr, flush=True)
            os._exit(3)
        return [[0] for _ in prompts]

    def close(self):
        pass

def load(model, options):
    return Dies()
"""
HAS_CHILD = """
import subprocess, sys

class Parent:
    has_prefix_cache = True

    def generate(self, prompts, num_tokens, on_token):
        return [[self.child.pid] for _ in prompts]

    def close(self):
        pass

def load(model, options):
    engine = Parent()
    engine.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return engine
"""
CONVERTS = """
def convert(model, out):
    if model.name == "bad":
        raise ValueError("no such model")
    out.write_text(f"converted {model.name}")
"""


def result(name: str, **medians: float) -> EngineResult:
    figures = {figure: Spread(median=value, lowest=value, highest=value) for figure, value in medians.items()}
    return EngineResult(
        name=name, version="1", num_matching=None, start_s=3.0, peak_bytes=1_500_000_000, figures=figures
    )


# -- bars


@pytest.mark.parametrize(
    ("theirs", "is_at_least", "expected"),
    [(50.0, True, True), (51.0, True, False), (50.0, False, True), (49.0, False, False)],
)
def test_a_bar_is_a_ratio_of_medians_with_its_limit_included(theirs: float, is_at_least: bool, expected: bool) -> None:
    bar = Bar(figure="single", theirs="vLLM", limit=2.0, is_at_least=is_at_least)
    (found,) = check([bar], [result(OURS, single=100.0), result("vLLM", single=theirs)])
    assert (found.value, found.is_met) == (100.0 / theirs, expected)


def test_a_bar_without_the_peer_or_its_figure_is_neither_met_nor_missed() -> None:
    bars = [Bar(figure="single", theirs="vLLM", limit=2.0), Bar(figure="hit", theirs="transformers", limit=2.0)]
    found = check(bars, [result(OURS, single=1.0, hit=1.0), result("transformers", single=1.0)])
    assert [(bar.value, bar.is_met) for bar in found] == [(None, None)] * 2


def test_start_and_memory_are_held_against_absolute_limits() -> None:
    found = {bar.figure: (bar.value, bar.is_met) for bar in check(BARS, [result(OURS)])}
    assert found["start"] == (3.0, True)
    assert found["memory"] == (1.5, False)


# -- measures


class Clockwork:
    """Takes 1 s to the first token, then a tenth of a second for each of them; a known prompt takes 0.01 s."""

    def __init__(self, *, has_prefix_cache: bool) -> None:
        self.has_prefix_cache = has_prefix_cache
        self.calls: list[Ids] = []

    def generate(self, prompts: Ids, *, num_tokens: int) -> Generation:
        first_token_s = 0.01 if prompts in self.calls and self.has_prefix_cache else 1.0
        self.calls.append(prompts)
        elapsed_s = first_token_s + 0.1 * (num_tokens - 1)
        return Generation(ids=[[]], first_token_s=first_token_s, elapsed_s=elapsed_s)


def measured(slot: str, *, has_prefix_cache: bool = True) -> dict[str, list[float]]:
    return SLOTS[slot](Clockwork(has_prefix_cache=has_prefix_cache), Workload(vocab_size=1000, num_tokens=11), 0)


def test_one_stream_is_rated_without_its_prefill_and_many_with_it() -> None:
    assert measured("single") == {"single": [pytest.approx(10.0)]}
    assert measured("streams16") == {"streams16": [16 * 11 / 2.0]}
    assert measured("streams64") == {"streams64": [64 * 11 / 2.0]}


def test_a_known_prompt_is_measured_only_where_there_is_a_prefix_cache() -> None:
    assert measured("first token") == {"cold": [1.0], "hit": [0.01]}
    assert measured("first token", has_prefix_cache=False) == {"cold": [1.0]}


def test_prompts_are_the_same_for_all_engines_and_others_in_every_round() -> None:
    engines = [Clockwork(has_prefix_cache=True) for _ in range(2)]
    workload = Workload(vocab_size=1000)
    for engine in engines:
        for number in range(2):
            SLOTS["single"](engine, workload, number)
    first, second = (engine.calls for engine in engines)
    assert first == second
    assert first[0] != first[1]
    assert {len(prompt) for (prompt,) in first} == {128}
    assert all(100 <= token < 1000 for (prompt,) in first for token in prompt)


def test_matching_ids_are_counted_up_to_the_first_difference() -> None:
    assert num_matching([[1, 2, 3], [1, 9, 3], [9], []], [[1, 2, 3], [1, 2, 3], [1], [1]]) == [3, 1, 0, 0]


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert spread([3.0, 1.0, 10.0]) == Spread(median=3.0, lowest=1.0, highest=10.0)


# -- peers


def write_peer(root: Path, name: str, code: str) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "runner.py").write_text(code)
    manifest = {"name": name, "version": "1.0", "python": sys.executable, "runner": str(folder / "runner.py")}
    (folder / "peer.json").write_text(json.dumps(manifest))


def test_installed_peers_are_those_with_a_manifest(tmp_path: Path) -> None:
    write_peer(tmp_path, "vLLM", ECHO)
    write_peer(tmp_path, "transformers", ECHO)
    (tmp_path / "half-installed").mkdir()
    peers = installed_peers(tmp_path, {"core": 1})
    assert [peer.name for peer in peers] == ["transformers", "vLLM"]
    assert peers[0].options == {"core": 1, "dtype": "bfloat16"}
    reference = reference_of(peers)
    assert reference is not None
    assert reference.options == {"core": 1, "dtype": "float32"}
    assert reference_of(peers[1:]) is None


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "peer.json").write_text('{"name": 1}')
    with pytest.raises(SettingsError, match=r"vllm.peer\.json.*install it again"):
        installed_peers(tmp_path, {})


def test_a_converted_model_is_kept_under_another_name_when_the_weights_change(tmp_path: Path) -> None:
    spec = EngineSpec(name="a", version="1", python=Path("p"), runner=Path("r"), options={}, converted_suffix=".gguf")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = converted_path(spec, model=tmp_path, root=tmp_path)
    assert before == converted_path(spec, model=tmp_path, root=tmp_path)
    assert before.suffix == ".gguf"
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert converted_path(spec, model=tmp_path, root=tmp_path) != before


# -- the table


def test_the_table_names_ratios_and_bars_met_missed_and_not_measured() -> None:
    engines = [result(OURS, single=100.0, hit=0.5), result("vLLM", single=50.0, hit=0.5)]
    report = EngineReport(
        model="a model",
        is_quick=False,
        num_rounds=3,
        core=1,
        machine=machine.describe(),
        elapsed_s=1.0,
        engines=engines,
        bars=check(BARS, engines),
        notes=["a note"],
    )
    console = Console(width=160, record=True, file=io.StringIO())
    show(report, console)
    lines = console.export_text().splitlines()
    ratios = next(line for line in lines if "vLLM" in line and "2.00" in line)
    assert "1.00" in ratios
    ends = {line.split("│")[1].strip(): line.split("│")[-2].strip() for line in lines if "=" in line and "│" in line}
    assert ends["headrace, 1 stream over vLLM"] == "met"
    assert ends["headrace, again, cached over vLLM"] == "MISSED"
    assert ends["headrace, 64 streams over vLLM"] == "not measured"
    assert ends["headrace, memory"] == "MISSED"
    assert "a note" in lines


# -- processes


Start = Callable[[str], EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    engines = []

    def start_engine(code: str) -> EngineProcess:
        engines.append(EngineProcess.start(spec_of(code, tmp_path), model=tmp_path, logs=tmp_path))
        return engines[-1]

    yield start_engine
    for engine in engines:
        engine.close()


def spec_of(code: str, folder: Path) -> EngineSpec:
    runner = folder / "runner.py"
    runner.write_text(code)
    core = min(os.sched_getaffinity(0))
    return EngineSpec(name="fake", version="1", python=Path(sys.executable), runner=runner, options={"core": core})


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def wait_for_state(pid: int, *states: str) -> str:
    """Its state, once it is one of `states` or after 20 s: a signal that was sent is not yet taken."""
    deadline_s = time.monotonic() + 20.0
    while (state := state_of(pid)) not in states and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return state


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.integration
def test_an_engine_answers_whatever_its_library_prints(start: Start) -> None:
    engine = start(ECHO)
    answer = engine.generate([[5], [7]], num_tokens=3)
    assert answer.ids == [[5, 6, 7], [7, 8, 9]]
    assert 0 <= answer.first_token_s <= answer.elapsed_s
    assert engine.start_s > 0
    assert not engine.has_prefix_cache


@pytest.mark.integration
@needs_proc
def test_an_engine_and_what_it_started_are_stopped_between_calls_and_gone_after(start: Start) -> None:
    engine = start(HAS_CHILD)
    ((child,),) = engine.generate([[1]], num_tokens=1).ids
    parent = process_tree.tree_of(os.getpid())
    assert child in parent
    assert wait_for_state(child, "T") == "T"
    peak = engine.peak_bytes()
    assert peak is not None
    assert peak > 10_000_000
    engine.close()
    assert wait_for_state(child, "gone", "Z") in {"gone", "Z"}


@pytest.mark.integration
def test_an_engine_that_dies_is_reported_with_the_end_of_its_log(start: Start) -> None:
    engine = start(DIES)
    with pytest.raises(EngineProcessError, match=r"fake ended without an answer.*\nout of something"):
        engine.generate([[1]], num_tokens=2)
    with pytest.raises(EngineProcessError, match="fake"):
        engine.generate([[1]], num_tokens=1)


@pytest.mark.integration
def test_a_conversion_writes_the_model_or_says_why_not(tmp_path: Path) -> None:
    spec = spec_of(CONVERTS, tmp_path)
    convert(spec, model=tmp_path / "good", out=tmp_path / "new" / "good.bin", logs=tmp_path)
    assert (tmp_path / "new" / "good.bin").read_text() == "converted good"
    with pytest.raises(EngineProcessError, match="no such model"):
        convert(spec, model=tmp_path / "bad", out=tmp_path / "bad.bin", logs=tmp_path)


@pytest.mark.integration
@needs_proc
def test_a_process_that_was_replaced_by_another_of_its_id_is_not_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        births = process_tree.births_of([process.pid])
        process_tree.kill({process.pid: "another birth"})
        assert process.poll() is None
        process_tree.kill(births)
        assert process.wait() == -signal.SIGKILL


# -- the commands


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny", max_model_len=2048)


@pytest.mark.integration
def test_ours_is_measured_beside_the_peers_that_work(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_peer(tmp_path / "peers", "vLLM", ECHO)
    write_peer(tmp_path / "peers", "llama.cpp", DIES)
    arguments = ["--model", str(model), "--peers-root", str(tmp_path / "peers"), "--quick", "--only", "single"]
    assert main(["bench", "engine", *arguments, "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=EngineReport)
    by_name = {engine.name: engine for engine in report.engines}
    assert {OURS, "vLLM"} <= by_name.keys()
    assert by_name[OURS].figures["single"].median > 0
    assert next(bar for bar in report.bars if bar.theirs == "vLLM").is_met is False
    notes = "\n".join(report.notes)
    assert "ids are not compared" in notes
    assert "llama.cpp is left out" in notes
    assert "out of something" in notes


@pytest.mark.integration
def test_nothing_is_measured_when_ours_gives_other_ids_than_transformers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_peer(tmp_path / "peers", "transformers", ECHO)
    arguments = ["--model", str(model), "--peers-root", str(tmp_path / "peers"), "--quick"]
    assert main(["bench", "engine", *arguments]) == 1
    assert "other ids than transformers" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.integration
def test_without_peers_ours_is_measured_alone_and_the_table_says_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(model), "--peers-root", str(tmp_path), "--quick", "--only", "first"]
    assert main(["bench", "engine", *arguments]) == 0
    output = capsys.readouterr().out
    assert "no peers are installed" in output
    assert "again, cached" in output
    assert "not measured" in output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["engine", "--rounds", "0"], "--rounds"),
        (["engine", "--only", "nothing"], "streams64"),
        (["engine", "--model", "nowhere"], "nowhere"),
        (["front", "--streams", "0"], "--streams"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.integration
def test_the_front_end_streams_every_token_over_a_core_that_computes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--model", str(DEMO), "--streams", "4", "--tokens", "8", "--rounds", "1"]
    assert main(["bench", "front", *arguments, "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=FrontReport)
    assert len(report.ways) == 4
    assert all(1.0 <= way.tokens_per_output <= 8.0 for way in report.ways)
    assert all(way.is_met is None for way in report.ways)
