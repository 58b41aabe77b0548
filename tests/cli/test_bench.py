import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench import Report
from headrace.cli.benchmarks.corpus import hostile_text, mixed_text
from headrace.cli.benchmarks.encoding import chat_text, turn_ends
from headrace.cli.benchmarks.loop import percentile
from headrace.cli.benchmarks.rounds import DifferentResultError, Group, measure
from headrace.cli.main import main

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


def group(**ways: Callable[[Any], Any]) -> Group:
    def awaitable(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def call(value: Any) -> Any:
            return way(value)

        return call

    return Group(
        title="a group",
        unit="ms",
        make_input=lambda number: number,
        ways={name: awaitable(way) for name, way in ways.items()},
        is_timed_inside=True,
    )


async def test_a_way_that_gives_another_result_is_no_way_to_be_faster() -> None:
    different = group(right=lambda number: (2.0, [1, number]), wrong=lambda number: (1.0, [2, number]))
    with pytest.raises(DifferentResultError, match="a group: 'wrong' and 'right'"):
        await measure(different, num_rounds=1, on_round=lambda: None)


async def test_medians_are_of_the_measured_rounds_and_compared_with_the_first_way() -> None:
    seconds = {0: 100.0, 1: 3.0, 2: 1.0, 3: 2.0}
    steps: list[None] = []
    rows = await measure(
        group(slow=lambda number: (seconds[number], "same"), fast=lambda number: (seconds[number] / 4, "same")),
        num_rounds=3,
        on_round=lambda: steps.append(None),
    )
    assert [(row.way, row.median, row.lowest, row.highest, row.times_faster) for row in rows] == [
        ("slow", 2000.0, 1000.0, 3000.0, 1.0),
        ("fast", 500.0, 250.0, 750.0, 4.0),
    ]
    assert len(steps) == 4


@given(st.integers(), st.integers(0, 5000))
def test_text_has_its_length_and_is_the_same_for_the_same_seed(seed: int, num_chars: int) -> None:
    text = mixed_text(seed, num_chars)
    assert len(text) == num_chars
    assert text == mixed_text(seed, num_chars)


def test_another_seed_gives_another_text() -> None:
    assert mixed_text(1, 500)[:100] != mixed_text(2, 500)[:100]
    assert hostile_text(1, 500, unit="random letters") != hostile_text(2, 500, unit="random letters")


def test_every_earlier_turn_of_a_chat_is_a_prefix_that_ends_where_the_model_answers() -> None:
    text = chat_text(1, num_turns=4)
    ends = turn_ends(text)
    assert len(ends) == 4
    assert ends[-1] == len(text)
    assert all(text[:end].endswith("<|im_start|>assistant\n") for end in ends)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.99, 10), (0.0, 1), (1.0, 10), (0.1, 1), (0.11, 2)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, expected: int) -> None:
    assert percentile(list(range(10, 0, -1)), share) == expected


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_a_number_of_rounds_out_of_range_is_refused(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loop", "--rounds", rounds]) == 2
    assert "--rounds" in capsys.readouterr().err


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tokenization", "--tokenizer", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


@pytest.mark.integration
def test_the_benchmark_of_tokenization_reports_its_rows_and_machine_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--quick", "--json", "--rounds", "1", "--only", "1 caller", "--tokenizer", str(DEMO)]
    assert main(["bench", "tokenization", *arguments]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert report.rows is not None
    assert [row.way for row in report.rows] == [
        "executor call per prompt",
        "vLLM's micro-batching",
        "AsyncMicrobatchTokenizer",
        "headrace service",
    ]
    assert report.machine.num_cores >= 1


async def test_vllms_way_is_rebuilt_with_its_idle_wait_and_its_batches() -> None:
    from headrace.cli.benchmarks.baselines import VllmMicroBatching

    batches: list[list[str]] = []

    def encode(texts: Any) -> list[int]:
        batches.append(list(texts))
        return [len(text) for text in texts]

    async with VllmMicroBatching(encode) as batching:
        results = await asyncio.gather(*[batching.encode("x" * number) for number in range(40)])
    assert results == list(range(40))
    assert [len(batch) for batch in batches] == [32, 8]
