import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.cli.benchmarks.chats import ChatRow, Ratios, prompts_of_turns, report_of
from headrace.cli.benchmarks.corpus import hostile_text, mixed_text
from headrace.cli.benchmarks.lag import percentile
from headrace.cli.benchmarks.loop import lag_rows
from headrace.cli.benchmarks.memory import distinct_prompts, fill_cache
from headrace.cli.benchmarks.report import Report
from headrace.cli.benchmarks.rounds import DifferentResultError, Group, measure
from headrace.cli.benchmarks.templates import TEMPLATES
from headrace.cli.main import main
from headrace.tokenization.chat_template import ChatTemplate

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
@example(seed=329, num_chars=329)  # one paragraph that is a character short
def test_text_has_its_length_and_is_the_same_for_the_same_seed(seed: int, num_chars: int) -> None:
    text = mixed_text(seed, num_chars)
    assert len(text) == num_chars
    assert text == mixed_text(seed, num_chars)


def test_another_seed_gives_another_text() -> None:
    assert mixed_text(1, 500)[:100] != mixed_text(2, 500)[:100]
    assert hostile_text(1, 500, unit="random letters") != hostile_text(2, 500, unit="random letters")


@pytest.mark.parametrize("family", TEMPLATES)
def test_every_turn_of_a_family_continues_the_turn_before(family: str) -> None:
    first, *later = prompts_of_turns(ChatTemplate(TEMPLATES[family]), mixed_text, seed=1, num_turns=3)
    system = mixed_text((1, "system"), 4000)
    assert system.strip() in first
    for turn, prompt in enumerate(later, 1):
        assert prompt.startswith(first)
        assert mixed_text((1, "user", turn), 100).strip() in prompt[len(first) :]
        first = prompt


def test_families_have_formats_of_their_own() -> None:
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    rendered = {ChatTemplate(template).render(messages) for template in TEMPLATES.values()}
    assert len(rendered) == len(TEMPLATES) >= 10


def chat_row(family: str, *, fastokens_ms: float | None) -> ChatRow:
    return ChatRow(family=family, num_tokens=1, tokenizers_ms=12.0, fastokens_ms=fastokens_ms, service_ms=2.0)


def test_families_are_summed_up_by_the_worst_and_the_median() -> None:
    slow = msgspec.structs.replace(chat_row("slow", fastokens_ms=4.0), service_ms=4.0)
    fast = msgspec.structs.replace(chat_row("fast", fastokens_ms=4.0), service_ms=1.0)
    report = report_of([fast, slow, chat_row("middle", fastokens_ms=4.0)], num_turns=20)
    assert report.against_tokenizers == Ratios(worst=3.0, worst_family="slow", median=6.0)
    assert report.against_fastokens == Ratios(worst=1.0, worst_family="slow", median=2.0)


def test_without_fastokens_nothing_is_said_of_it() -> None:
    assert report_of([chat_row("one", fastokens_ms=None)], num_turns=20).against_fastokens is None


def test_lag_is_compared_with_the_idle_loops() -> None:
    rounds = {
        "idle": [([0.001] * 10, 0.0), ([0.003] * 10, 0.0), ([0.002] * 10, 0.0)],
        "busy": [([0.001] * 9 + [0.010], 5.0)] * 2 + [([0.001] * 9 + [0.030], 7.0)],
    }
    idle, busy = lag_rows(rounds)
    assert (idle.p99_9_above_idle_ms, idle.max_above_idle_ms, idle.worst_ms) == (0, 0, 3.0)
    assert (busy.p50_ms, busy.max_ms, busy.worst_ms, busy.prompts_per_s) == (1.0, 10.0, 30.0, 5.0)
    assert (busy.p99_9_above_idle_ms, busy.max_above_idle_ms) == pytest.approx((8.0, 8.0))


def test_the_prompts_for_memory_are_distinct_and_always_the_same() -> None:
    prompts = list(distinct_prompts(500))
    assert len(set(prompts)) == 500
    assert prompts == list(distinct_prompts(500))
    assert all(100 <= len(prompt) <= 4010 for prompt in prompts)


async def test_memory_is_measured_while_the_cache_turns_over() -> None:
    report = await fill_cache(DEMO, num_prompts=1500, budget=512 * 1024)
    assert report.num_evictions > 0
    assert 0.4 < report.accounted_mib <= report.budget_mib == 0.5
    assert report.share_of_budget == report.grown_mib / 0.5


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.99, 10), (0.0, 1), (1.0, 10), (0.1, 1), (0.11, 2)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, expected: int) -> None:
    assert percentile(list(range(10, 0, -1)), share) == expected


@pytest.mark.parametrize("flag", ["--rounds", "--prompts"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_out_of_range_is_refused(flag: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tokenization", flag, number]) == 2
    assert flag in capsys.readouterr().err


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
    assert (report.chats, report.memory, report.worst_cases, report.lag) == (None, None, None, None)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["tokenization", "--only", "turn 20"], ["Llama 2", "times faster than tokenizers with the whole: worst"]),
        (["tokenization", "--only", "memory", "--prompts", "300"], ["300 distinct prompts", "accounted"]),
        (["tokenization", "--only", "worst"], ["0.02 MB of one letter", "random code", "<|endoftext|>"]),
    ],
)
def test_parts_are_measured_one_by_one_and_shown_as_tables(
    arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments, "--quick", "--rounds", "1", "--tokenizer", str(DEMO)]) == 0
    output = capsys.readouterr().out
    assert [text for text in shown if text not in output] == []


def test_a_part_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tokenization", "--quick", "--only", "nothing", "--tokenizer", str(DEMO)]) == 2
    assert "worst cases" in capsys.readouterr().err


async def test_vllms_way_is_rebuilt_with_its_idle_wait_and_its_batches() -> None:
    from headrace.cli.benchmarks.baselines import VllmMicroBatching

    batches: list[list[str]] = []

    def encode(texts: Any) -> list[int]:
        batches.append(list(texts))
        return [len(text) for text in texts]

    async with VllmMicroBatching(encode) as batching:
        results = await asyncio.gather(*[batching.encode("x" * number) for number in range(40)])
    assert results == list(range(40))
    sizes = [len(batch) for batch in batches]
    assert sum(sizes) == 40
    assert 1 < max(sizes) <= 32  # how many come within the wait is the machine's to say
