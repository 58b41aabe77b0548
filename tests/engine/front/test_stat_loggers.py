"""What the engine tells its stat loggers, and what they make of it."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine import (
    AsyncLLMEngine,
    EngineStatistics,
    FrontEndSettings,
    LoggingStatLogger,
    SamplingParams,
    StepStats,
)
from headrace.engine.client.host import ThreadHost
from headrace.engine.front.assembly import assemble
from headrace.engine.statistics import engine_statistics
from headrace.engine.wire.messages import CoreStatistics
from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.metrics import expose
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import TokenizationService


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.num_logs = 0

    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        self.steps.append(step)

    def log(self) -> None:
        self.num_logs += 1


class Broken(Recorder):
    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        raise RuntimeError("the disk is full")


async def answer(engine: AsyncLLMEngine, prompt: str = "abc", *, max_tokens: int = 5, request_id: str = "r") -> None:
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=max_tokens), request_id):
        pass


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Values by name and by the label that is not the model's, if there is one."""
    found = {}
    for family in text_string_to_metric_families(expose(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("model_name"), labels.pop("engine")) == ("fake", "0")
            found[sample.name, next(iter(labels.values()), "")] = sample.value
    return found


async def test_a_logger_is_told_of_each_token_and_of_the_end(engine: AsyncLLMEngine) -> None:
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    await answer(engine)
    assert sum(step.num_generation_tokens for step in recorder.steps) == 5
    assert sum(step.num_prompt_tokens for step in recorder.steps) == 3
    assert sum(len(step.times_to_first_token_s) for step in recorder.steps) == 1
    assert sum(len(step.inter_token_latencies_s) for step in recorder.steps) == 4
    (finished,) = [finished for step in recorder.steps for finished in step.finished]
    assert (finished.request_id, finished.reason, finished.num_generation_tokens) == ("r", "length", 5)
    assert 0 <= finished.time_to_first_token_s <= finished.e2e_s < 10


async def test_a_removed_logger_hears_nothing_more(engine: AsyncLLMEngine) -> None:
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    await engine.remove_logger("mine")
    await answer(engine)
    assert recorder.steps == []
    with pytest.raises(InvalidRequestError, match="no stat logger 'mine'; there is prometheus"):
        await engine.remove_logger("mine")


async def test_a_name_can_be_given_to_one_logger_only(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="'prometheus'"):
        await engine.add_logger("prometheus", Recorder())


@pytest.mark.parametrize("logger", [None, "stderr", object()])
async def test_what_is_no_logger_is_refused(engine: AsyncLLMEngine, logger: Any) -> None:
    with pytest.raises(InvalidRequestError, match="it needs the methods") as caught:
        await engine.add_logger("mine", logger)
    assert caught.value.param == "logger"


async def test_a_logger_that_fails_does_not_harm_the_engine(
    engine: AsyncLLMEngine, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    await engine.add_logger("broken", Broken())
    await engine.add_logger("mine", recorder)
    await answer(engine)
    assert recorder.steps
    assert "the stat logger 'broken' failed" in caplog.text


async def test_loggers_report_when_asked(engine: AsyncLLMEngine) -> None:
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    await engine.do_log_stats()
    assert recorder.num_logs == 1
    with pytest.raises(UnsupportedError) as caught:
        await engine.do_log_stats(model_output=[])
    assert caught.value.param == "model_output"


async def test_loggers_report_regularly(core: FakeCore, tokenization: TokenizationService) -> None:
    settings = FrontEndSettings(stats_interval_s=0.01)
    engine = AsyncLLMEngine(
        fake_engine_config(),
        host=ThreadHost(build_core=lambda _config: core),
        settings=settings,
        tokenization=tokenization,
    )
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    async with engine, asyncio.timeout(10):
        while recorder.num_logs < 2:
            await asyncio.sleep(0.005)


async def test_a_consumer_that_leaves_is_counted_as_an_abort_and_a_refusal_is_not(
    engine: AsyncLLMEngine, core: FakeCore
) -> None:
    core.allow_steps(1)
    stream = await engine.add_request("r", "abc", SamplingParams(max_tokens=100))
    await anext(stream)
    stream.close()
    with pytest.raises(InvalidRequestError):
        await answer(engine, "")
    core.allow_steps(None)
    await answer(engine)  # what is counted is handed on with the next step
    found = samples(engine.registry)
    assert found["vllm:request_success_total", "abort"] == 1
    assert found["vllm:request_success_total", "length"] == 1
    assert ("vllm:request_success_total", "error") not in found


async def test_metrics_have_vllms_names_and_count_what_happened(engine: AsyncLLMEngine) -> None:
    await answer(engine, "abc", max_tokens=5)
    await answer(engine, "abcdef", max_tokens=2)
    found = samples(engine.registry)
    assert found["vllm:prompt_tokens_total", ""] == 9
    assert found["vllm:generation_tokens_total", ""] == 7
    assert found["vllm:request_success_total", "length"] == 2
    for name, number in (
        ("time_to_first_token_seconds", 2),
        ("inter_token_latency_seconds", 5),
        ("time_per_output_token_seconds", 5),
        ("request_time_per_output_token_seconds", 2),
        ("e2e_request_latency_seconds", 2),
        ("request_decode_time_seconds", 2),
        ("request_prompt_tokens", 2),
        ("request_generation_tokens", 2),
        ("request_params_max_tokens", 2),
        ("request_params_n", 2),
    ):
        assert found[f"vllm:{name}_count", ""] == number, name
    assert found["vllm:request_generation_tokens_sum", ""] == 7
    assert found["vllm:num_requests_running", ""] == found["vllm:num_requests_waiting", ""] == 0
    assert found["vllm:engine_sleep_state", "awake"] == 1
    assert found["vllm:num_requests_waiting_by_reason", "capacity"] == 0
    assert {name for name, _ in found} >= {
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:cache_config_info",
    }


def test_two_engines_in_one_process_have_registries_of_their_own(core: FakeCore) -> None:
    config, host = fake_engine_config(), ThreadHost(build_core=lambda _config: core)
    assert AsyncLLMEngine(config, host=host).registry is not AsyncLLMEngine(config, host=host).registry
    registry = CollectorRegistry()
    assemble(config, hosts=[host], registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):  # one registry for two would mix them
        assemble(config, hosts=[host], registry=registry)


def step(*, prompt: int = 0, generated: int = 0) -> StepStats:
    return StepStats(
        num_prompt_tokens=prompt,
        num_cached_prompt_tokens=0,
        num_generation_tokens=generated,
        times_to_first_token_s=(),
        inter_token_latencies_s=(),
        finished=(),
        num_answers_asked=(),
    )


def test_the_log_line_tells_the_throughput_since_the_line_before(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    logger = LoggingStatLogger(clock=lambda: now_s)
    core = CoreStatistics(
        num_running=2, num_waiting=1, num_blocks=10, num_free_blocks=5, prefix_cache_queries=40, prefix_cache_hits=10
    )
    logger.record(step(prompt=100, generated=20), engine_statistics(core, num_unfinished=3))
    logger.record(step(generated=30), engine_statistics(core, num_unfinished=3))
    now_s = 110.0
    with caplog.at_level(logging.INFO, logger="headrace.engine.stats"):
        logger.log()
    (line,) = caplog.messages
    assert line == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 2 reqs, "
        "Waiting: 1 reqs, KV cache usage: 50.0%, Prefix cache hit rate: 25.0%"
    )


def test_an_idle_engine_writes_no_line(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    logger = LoggingStatLogger(clock=lambda: now_s)
    logger.record(step(generated=1), engine_statistics(CoreStatistics(), num_unfinished=0))
    with caplog.at_level(logging.INFO, logger="headrace.engine.stats"):
        now_s = 10.0
        logger.log()
        now_s = 20.0
        logger.log()
    assert len(caplog.messages) == 1
