import json
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from benchmarks.suite.summaries import engine, gateway, routing, tokenization

from headrace.cli.benchmarks import libraries, machine
from headrace.cli.benchmarks.encoding import MODEL, Encoders
from headrace.cli.benchmarks.engine_bars import BARS, EngineResult, check
from headrace.cli.benchmarks.engine_measures import spread
from headrace.cli.benchmarks.engine_report import EngineReport
from headrace.cli.benchmarks.gateway import figures as gateway_figures
from headrace.cli.benchmarks.gateway.report import GatewayReport
from headrace.cli.benchmarks.report import Report
from headrace.cli.benchmarks.rounds import Row, measure
from headrace.cli.main import main
from headrace.tokenization.service import TokenizationService

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"

# summaries


def row(group: str, way: str, median: float) -> Row:
    return Row(group=group, way=way, unit="ms", median=median, lowest=median, highest=median, times_faster=1.0)


def test_bars_of_tokenization_are_ratios_of_one_group() -> None:
    title = "fresh text, 4k tokens"
    rows = [row(title, "tokenizers.encode", 10.0), row(title, "headrace service", 1.0), row("other", "fastokens", 3.0)]
    report = Report(
        benchmark="tokenization",
        tokenizer="/a/tokenizer.json",
        is_quick=False,
        num_rounds=7,
        machine=machine.describe(),
        elapsed_s=1.0,
        rows=rows,
        notes=["tokie is left out"],
    )
    summary = tokenization.summarize(msgspec.json.encode(report))
    assert [(bar.title, bar.limit, bar.value) for bar in summary.bars] == [
        (f"{title} over tokenizers.encode", 8.0, 10.0)
    ]
    assert [value.name for value in summary.figures[0].values] == ["headrace service", "tokenizers.encode"]
    assert (summary.about, summary.notes) == ("tokenizer.json, 7 rounds", ["tokie is left out"])


def test_engines_come_with_ours_first_and_without_what_they_lack() -> None:
    def result(name: str, **figures: float) -> EngineResult:
        return EngineResult(
            name=name,
            version="1",
            num_matching=None,
            start_s=2.0,
            peak_bytes=None,
            figures={key: spread([value]) for key, value in figures.items()},
        )

    engines = [result("vLLM", single=10.0), result("headrace", single=20.0, hit=0.5)]
    report = EngineReport(
        model="/a/random-135m",
        is_quick=False,
        num_rounds=3,
        core=1,
        machine=machine.describe(),
        elapsed_s=1.0,
        engines=engines,
        bars=check(BARS, engines),
        notes=[],
    )
    summary = engine.summarize(msgspec.json.encode(report))
    names = {figure.key: [value.name for value in figure.values] for figure in summary.figures}
    assert names == {"single": ["headrace", "vLLM"], "hit": ["headrace"], "start": ["headrace", "vLLM"], "memory": []}
    assert (summary.bars[0].title, summary.bars[0].value) == ("headrace, 1 stream over vLLM", 2.0)
    assert [bar.is_met for bar in summary.bars[:2]] == [True, None]


def test_gateways_have_a_figure_for_each_column_and_a_note_for_each_failure() -> None:
    def gateway_row(name: str, **figures: float) -> gateway_figures.Row:
        return gateway_figures.Row(
            part="small", contender=name, figures={key: spread([value]) for key, value in figures.items()}
        )

    failed = msgspec.structs.replace(gateway_row("litellm"), error="it answered 400")
    rows = [gateway_row("headrace", rate=30.0, p50=1.0), gateway_row("smg", rate=10.0, p50=3.0), failed]
    report = GatewayReport(
        machine=machine.describe(),
        tokenizer="demo",
        is_quick=True,
        num_rounds=1,
        gateway_core=0,
        load_core=1,
        versions={"headrace": "1", "smg": "2"},
        rows=rows,
        bars=gateway_figures.check(gateway_figures.BARS, rows),
        notes=["dynamo is not installed: make peers"],
        elapsed_s=1.0,
    )
    summary = gateway.summarize(msgspec.json.encode(report))
    assert [(figure.key, figure.is_higher_better) for figure in summary.figures] == [
        ("small-rate", True),
        ("small-p50", False),
    ]
    assert [figure.times_better(figure.values[1]) for figure in summary.figures] == [3.0, 3.0]
    assert summary.notes == ["dynamo is not installed: make peers", "litellm, small: it answered 400"]


def test_routing_is_measured_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--requests", "40", "--tokens", "2048", "--rounds", "3", "--endpoints", "2"]
    assert main(["bench", "routing", *small, "--quick", "--json", "--peers-root", str(tmp_path)]) == 0
    summary = routing.summarize(capsys.readouterr().out.encode())
    hit_rate = summary.figures[0]
    assert hit_rate.key == "agents-at-work-hit-rate"
    assert [value.name for value in hit_rate.values] == ["prefix", "round_robin"]
    assert hit_rate.times_better(hit_rate.values[1]) is not None
    assert summary.notes == ["dynamo is not installed: make peers"]
    assert {bar.title for bar in summary.bars} >= {"decision, cold, p99", "agents at work: hit rate below the ceiling"}


# other tokenizer libraries


def install_library(root: Path, code: str) -> None:
    folder = root / "tokenizers"
    folder.mkdir()
    runner = folder / "runner.py"
    runner.write_text(textwrap.dedent(code))
    manifest = {"python": sys.executable, "runner": str(runner)}
    (folder / "tokenizers.json").write_text(json.dumps(manifest))


ONE_RIGHT_ONE_WRONG = """
    import json, sys
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(sys.argv[1])
    print(json.dumps({"libraries": ["right", "wrong"], "missing": {"absent": "no module"}}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids = library.encode(request["text"]).ids + ([1] if request["library"] == "wrong" else [])
        print(json.dumps({"seconds": 0.5, "ids": ids}), flush=True)
"""


@pytest.mark.integration
async def test_a_library_with_other_ids_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    install_library(tmp_path, ONE_RIGHT_ONE_WRONG)
    peers = libraries.installed(tmp_path, DEMO)
    assert peers is not None
    async with TokenizationService() as service, peers:
        encoders = Encoders.load(DEMO, tokenizer=await service.load(MODEL, DEMO), service=service)
        (group,), notes = await libraries.library_groups(encoders, peers, num_tokens=(1000,))
        rows = await measure(group, num_rounds=1, on_round=lambda: None)
    assert notes == ["absent cannot load this tokenizer: no module", "wrong is left out: it gives other ids"]
    assert {one.way: one.median for one in rows}["right"] == 500.0
    assert "wrong" not in {one.way for one in rows}


@pytest.mark.integration
async def test_libraries_whose_process_ends_are_an_error_that_says_so(tmp_path: Path) -> None:
    install_library(tmp_path, "raise SystemExit(1)")
    peers = libraries.installed(tmp_path, DEMO)
    assert peers is not None
    with pytest.raises(libraries.LibrariesError, match="ended; run make peers again"):
        async with peers:
            pass


def test_libraries_that_are_not_installed_are_none(tmp_path: Path) -> None:
    assert libraries.installed(tmp_path, DEMO) is None
