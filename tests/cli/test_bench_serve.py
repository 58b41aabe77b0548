import asyncio
import io
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.cli.bench_serve.arrivals import arrival_times_s
from headrace.cli.bench_serve.client import LoadClient
from headrace.cli.bench_serve.load import send_all
from headrace.cli.bench_serve.prompts import PromptMaker
from headrace.cli.bench_serve.report import make_report, most_at_once, show
from headrace.cli.bench_serve.results import RequestResult
from headrace.cli.bench_serve.settings import LoadSettings
from headrace.cli.bench_serve.workloads import Work, make_work
from headrace.cli.benchmarks import machine
from headrace.errors import SettingsError, UpstreamError
from headrace.openai.sse import DONE, encode_event
from headrace.testing.fake_upstream import Exchange, FakeUpstream, answers, dies_after, streams, usage_event
from headrace.tokenization import load_tokenizer

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
WORDS = PromptMaker(None, seed=0)


# -- prompts and times


def test_a_prompt_has_exactly_the_tokens_asked_for() -> None:
    tokenizer = load_tokenizer(DEMO)
    maker = PromptMaker(tokenizer, seed=3)
    assert maker.is_exact
    for num_tokens in (1, 17, 900):
        (token_ids,) = tokenizer.encode_batch([maker.text("a", num_tokens=num_tokens)], add_special_tokens=False)
        assert len(token_ids) == num_tokens


def test_a_name_gives_the_same_text_and_a_longer_one_goes_on() -> None:
    assert WORDS.text("a", num_tokens=50).startswith(PromptMaker(None, seed=0).text("a", num_tokens=20))
    assert WORDS.text("a", num_tokens=50) != WORDS.text("b", num_tokens=50)
    assert PromptMaker(None, seed=1).text("a", num_tokens=50) != WORDS.text("a", num_tokens=50)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_that_are_asked_for(burstiness: float) -> None:
    times = arrival_times_s(40_001, rate=20.0, burstiness=burstiness, seed=1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert deviation / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times_s(3, rate=math.inf, burstiness=1.0, seed=0) == [0.0, 0.0, 0.0]


# -- workloads


def test_random_lengths_stay_around_their_mean_behind_a_shared_prefix() -> None:
    settings = LoadSettings(num_prompts=50, random_input_len=100, random_range_ratio=0.5, random_prefix_len=10)
    work = make_work(settings, WORDS)
    lengths = {one.num_prompt_tokens for one in work}
    assert all(60 <= length <= 160 for length in lengths)
    assert len(lengths) > 10
    assert len({" ".join(one.prompt.split()[:10]) for one in work}) == 1
    assert len({one.prompt for one in work}) == 50


def test_prefixes_repeat_as_often_as_asked_for() -> None:
    settings = LoadSettings(
        dataset_name="prefix_repetition",
        num_prompts=40,
        prefix_repetition_num_prefixes=4,
        prefix_repetition_prefix_len=30,
        prefix_repetition_suffix_len=5,
    )
    prefixes = [" ".join(one.prompt.split()[:30]) for one in make_work(settings, WORDS)]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [10, 10, 10, 10]


def test_a_trace_keeps_its_times_and_shares_its_blocks(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"timestamp": 1000, "input_length": 1000, "output_length": 9, "hash_ids": [1, 2]},
        {"timestamp": 4000, "input_length": 700, "output_length": 300, "hash_ids": [1, 3]},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    settings = LoadSettings(
        dataset_name="mooncake", dataset_path=str(trace), trace_time_scale=2.0, max_output_len=50, num_prompts=5
    )
    first, second = make_work(settings, WORDS)
    assert (first.at_s, second.at_s) == (0.0, 1.5)
    assert (first.num_output_tokens, second.num_output_tokens) == (9, 50)
    assert len(first.prompt.split()) == 1000
    assert first.prompt.split()[:512] == second.prompt.split()[:512]
    assert first.prompt.split()[512:700] != second.prompt.split()[512:]


def test_conversations_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    turns = [{"from": "human", "value": "How deep is it?"}, {"from": "gpt", "value": "About three words " * 10}]
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    (work,) = make_work(LoadSettings(dataset_name="sharegpt", dataset_path=str(file)), WORDS)
    assert work.prompt == "How deep is it?"
    assert work.num_output_tokens == 40


def test_without_a_file_conversations_have_lengths_of_their_own() -> None:
    work = make_work(LoadSettings(dataset_name="sharegpt", num_prompts=100), WORDS)
    assert len({one.num_prompt_tokens for one in work}) > 30
    assert all(4 <= one.num_output_tokens <= 1024 for one in work)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"num_prompts": 0}, "num_prompts"),
        ({"request_rate": 0.0}, "request_rate"),
        ({"random_range_ratio": 1.0}, "random_range_ratio"),
        ({"dataset_name": "mooncake"}, "dataset_path"),
        ({"percentile_metrics": "ttft,speed"}, "percentile_metrics"),
        ({"metric_percentiles": "99,101"}, "metric_percentiles"),
        ({"goodput": ("itl:3",)}, "goodput"),
        ({"goodput": ("ttft:soon",)}, "goodput"),
        ({"header": ("x-tenant",)}, "header"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(SettingsError) as raised:
        LoadSettings(**wrong)
    assert raised.value.param == param


# -- results


def result(*, sent: float = 0.0, texts: Sequence[float] = (), ended: float, error: str | None = None) -> RequestResult:
    one = RequestResult(sent_s=sent)
    for moment in texts:
        one.note_text(moment)
    one.num_output_tokens = 2 * len(texts)
    one.ended_s = ended
    one.error = error
    return one


def test_times_are_taken_from_sending_and_from_the_first_text() -> None:
    one = result(sent=1.0, texts=(1.5, 1.7, 2.0), ended=2.1)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.itls_s == pytest.approx([0.2, 0.3])
    assert one.tpot_s == pytest.approx(0.5 / 5)
    assert one.e2el_s == pytest.approx(1.1)


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    settings = LoadSettings(goodput=("ttft:600", "tpot:120"))
    quick, slow_start = result(texts=(0.5, 1.0), ended=1.0), result(texts=(0.7, 0.8), ended=1.0)
    slow_later, failed = result(texts=(0.5, 1.5), ended=2.0), result(ended=0.1, error="no")
    found = machine.describe()
    report = make_report([quick, slow_start, slow_later, failed], settings, model="m", duration_s=2.0, machine=found)
    assert (report.completed, report.failed, report.errors) == (3, 1, {"no": 1})
    assert report.request_goodput == pytest.approx(0.0)
    quick.num_output_tokens = 6
    report = make_report([quick, slow_start], settings, model="m", duration_s=2.0, machine=found)
    assert report.request_goodput == pytest.approx(0.5)
    assert report.times["ttft"].percentiles_ms["p50"] == pytest.approx(600)


def test_what_stands_in_brackets_is_shown_as_it_is() -> None:
    failed = result(ended=0.1, error="refused: [errno 111] no such adapter [bold]")
    good = result(texts=(0.5,), ended=1.0)
    good.endpoint = "http://[fd00::1]:8000"
    settings = LoadSettings(base_url="http://[fe80::1]:8080")
    report = make_report([good, failed], settings, model="m[red]", duration_s=1.0, machine=machine.describe())
    shown = io.StringIO()

    show(report, Console(file=shown, width=200))

    for words in ("[errno 111] no such adapter [bold]", "m[red] at http://[fe80::1]:8080", "http://[fd00::1]:8000"):
        assert words in shown.getvalue()


def test_requests_at_a_time_are_counted_where_they_overlap() -> None:
    assert most_at_once([result(sent=0, ended=2), result(sent=1, ended=3), result(sent=2, ended=4)]) == 2


# -- over sockets


WORK = Work(prompt="How deep?", num_prompt_tokens=2, num_output_tokens=4)


async def completes_in_pieces(exchange: Exchange) -> None:
    await exchange.start_chunked()
    for text in ("a", "b", "c"):
        await exchange.chunk(encode_event(json.dumps({"choices": [{"text": text}]}).encode()))
    await exchange.chunk(usage_event(prompt_tokens=7, completion_tokens=3))
    await exchange.chunk(DONE)
    await exchange.chunk(b"")


TEXTS = {"openai-chat": streams(["a", "b", "c"], prompt_tokens=7), "openai": completes_in_pieces}


async def loaded(upstream: FakeUpstream, num_requests: int, **settings: Any) -> list[RequestResult]:
    client = LoadClient(LoadSettings(base_url=upstream.url, **settings))
    try:
        await client.wait_ready()
        return await send_all(
            client,
            [WORK] * num_requests,
            [0.0] * num_requests,
            max_concurrency=settings.get("max_concurrency"),
            on_end=lambda: None,
        )
    finally:
        await client.aclose()


@pytest.mark.integration
@pytest.mark.parametrize("backend", ["openai-chat", "openai"])
async def test_a_streamed_answer_is_timed_and_its_usage_counted(backend: str) -> None:
    async with FakeUpstream() as upstream:
        upstream.behaviour = TEXTS[backend]
        (one,) = await loaded(upstream, 1, backend=backend, api_key="secret", extra_body='{"top_p": 0.5}')
        sent = upstream.received[-1]
    assert one.error is None
    assert (one.num_prompt_tokens, one.num_output_tokens) == (7, 3)
    assert one.ttft_s is not None
    assert len(one.itls_s) <= 2
    assert sent.header("authorization") == "Bearer secret"
    assert sent.json()["top_p"] == 0.5
    assert sent.json()["model"] == "demo"


@pytest.mark.integration
async def test_the_loop_is_open_so_a_slow_server_gets_all_requests() -> None:
    all_came, num_came = asyncio.Event(), 0
    answer = streams(["a"], prompt_tokens=1)

    async def waits_for_all(exchange: Exchange) -> None:
        nonlocal num_came
        num_came += 1
        if num_came == 12:
            all_came.set()
        await all_came.wait()
        await answer(exchange)

    async with FakeUpstream() as upstream:
        upstream.behaviour = waits_for_all
        results = await loaded(upstream, 12)
    assert [one.error for one in results] == [None] * 12
    assert most_at_once(results) == 12


@pytest.mark.integration
async def test_no_more_requests_than_asked_for_are_under_way() -> None:
    async with FakeUpstream() as upstream:
        upstream.behaviour = streams(["a", "b"], prompt_tokens=1)
        results = await loaded(upstream, 9, max_concurrency=2)
    assert most_at_once(results) <= 2
    assert len(results) == 9


@pytest.mark.integration
@pytest.mark.parametrize(
    ("behaviour", "why"),
    [(answers(429), "status 429"), (dies_after("a"), "RemoteProtocolError"), (streams(["a"], prompt_tokens=1), None)],
)
async def test_each_request_ends_once_well_or_with_its_reason(behaviour: Any, why: str | None) -> None:
    async with FakeUpstream() as upstream:
        upstream.behaviour = behaviour
        results = await loaded(upstream, 3)
    assert [one.error is None for one in results] == [why is None] * 3
    assert why is None or all(why in str(one.error) for one in results)


async def test_a_server_that_never_comes_up_is_named_after_the_deadline() -> None:
    client = LoadClient(LoadSettings(base_url="http://127.0.0.1:1", ready_timeout_s=0.1))
    with pytest.raises(UpstreamError, match="was not ready within"):
        await client.wait_ready()
    await client.aclose()
