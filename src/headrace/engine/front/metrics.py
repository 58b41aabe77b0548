"""The engine's Prometheus metrics, under vLLM's names so that its dashboards and routers read this engine as well.

What the engine counts itself is asked of it when somebody scrapes; what happens to requests is counted as it happens.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.engine.config import EngineConfig
from headrace.engine.front.step_stats import FinishedRequest, StepStats
from headrace.engine.statistics import EngineStatistics
from headrace.metrics import LATENCY_BUCKETS_S
from headrace.tokenization.tallies import CounterTally, HistogramTally

_LABELS = ("model_name", "engine")
_ENGINE_INDEX = "0"
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
_STEP_TOKEN_BUCKETS = tuple(float(1 << exponent) for exponent in range(15))
_COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


class PrometheusStatLogger:
    """A stat logger that counts into `registry`. One registry per engine: the names can be registered once."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        registry: CollectorRegistry,
        statistics: Callable[[], EngineStatistics],
        lora_names: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`statistics` is asked at every scrape, and `lora_names` for the adapters that open requests use."""
        self._registry = registry
        self._labels = (config.model.served_model_name, _ENGINE_INDEX)
        token_buckets = tuple(_one_two_five(config.model.max_model_len))
        registry.register(_EngineNumbers(self._labels, statistics))
        registry.register(_EngineInfo(self._labels, config, statistics, lora_names))
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that got their first token")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Of them, those from the prefix cache")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._success = self._counter("request_success", "Requests by how they ended", "finished_reason")
        self._first_token = self._seconds("time_to_first_token_seconds", "From arrival to the first token")
        self._inter_token = self._seconds("inter_token_latency_seconds", "From one token to the next")
        self._per_token_older = self._seconds("time_per_output_token_seconds", "inter_token_latency_seconds, once more")
        self._per_token = self._seconds("request_time_per_output_token_seconds", "Mean between a request's tokens")
        self._e2e = self._seconds("e2e_request_latency_seconds", "From arrival to the end")
        self._queue = self._seconds("request_queue_time_seconds", "From arrival in the core to the first step")
        self._prefill = self._seconds("request_prefill_time_seconds", "From the first step to the first token")
        self._decode = self._seconds("request_decode_time_seconds", "From the first token to the last")
        self._inference = self._seconds("request_inference_time_seconds", "From the first step to the last token")
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens of a step", buckets=_STEP_TOKEN_BUCKETS)
        self._num_prompt = self._histogram("request_prompt_tokens", "Prompt tokens", buckets=token_buckets)
        self._num_generated = self._histogram("request_generation_tokens", "Tokens generated", buckets=token_buckets)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens asked for", buckets=token_buckets)
        self._n = self._histogram("request_params_n", "n asked for", buckets=_COUNT_BUCKETS)

    def __repr__(self) -> str:
        return f"<PrometheusStatLogger {self._labels[0]}>"

    def record(self, step: StepStats, engine: EngineStatistics) -> None:
        labels = self._labels
        self._prompt_tokens.add(*labels, number=step.num_prompt_tokens)
        self._cached_tokens.add(*labels, number=step.num_cached_prompt_tokens)
        self._generation_tokens.add(*labels, number=step.num_generation_tokens)
        for seconds in step.times_to_first_token_s:
            self._first_token.observe(seconds, *labels)
        for seconds in step.inter_token_latencies_s:
            self._inter_token.observe(seconds, *labels)
            self._per_token_older.observe(seconds, *labels)
        if engine.num_step_tokens and step.num_generation_tokens:
            self._step_tokens.observe(engine.num_step_tokens, *labels)
        for num_answers in step.num_answers_asked:
            self._n.observe(num_answers, *labels)
        for finished in step.finished:
            self._record_finished(finished)

    def log(self) -> None:
        """Nothing: it is scraped."""

    def _record_finished(self, finished: FinishedRequest) -> None:
        labels = self._labels
        self._success.add(*labels, finished.reason)
        durations = (
            (self._e2e, finished.e2e_s),
            (self._queue, finished.queue_s),
            (self._prefill, finished.prefill_s),
            (self._decode, finished.decode_s),
            (self._inference, finished.inference_s),
            (self._per_token, finished.time_per_output_token_s),
            (self._num_prompt, finished.num_prompt_tokens),
            (self._num_generated, finished.num_generation_tokens),
            (self._max_tokens, finished.max_tokens),
        )
        for histogram, value in durations:
            if value is not None:
                histogram.observe(value, *labels)

    def _counter(self, name: str, text: str, *more_labels: str) -> CounterTally:
        tally = CounterTally(f"vllm:{name}", text, (*_LABELS, *more_labels), registry=self._registry)
        if not more_labels:
            tally.add(*self._labels, number=0)  # shown from the start, so that the first increase is seen as one
        return tally

    def _seconds(self, name: str, text: str) -> HistogramTally:
        return self._histogram(name, text, buckets=LATENCY_BUCKETS_S)

    def _histogram(self, name: str, text: str, *, buckets: tuple[float, ...]) -> HistogramTally:
        return HistogramTally(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry)


class _EngineNumbers(Collector):
    """What the engine counts itself."""

    def __init__(self, labels: tuple[str, str], statistics: Callable[[], EngineStatistics]) -> None:
        self._labels = labels
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        now = self._statistics()
        yield self._gauge("num_requests_running", "Requests in the running batch", now.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait to run", now.num_waiting)
        yield self._waiting_by_reason(now)
        yield self._gauge("kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1", now.kv_cache_usage)
        yield self._sleep_state(now)
        yield self._counter("num_preemptions", "Requests put back to wait for want of blocks", now.num_preemptions)
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache", now.prefix_cache_queries
        )
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache", now.prefix_cache_hits)
        yield self._rejections(now)

    def describe(self) -> Iterable[Metric]:
        return ()  # without it the registry would ask the engine while it is being built

    def _waiting_by_reason(self, now: EngineStatistics) -> Metric:
        text = "Requests that wait, by what for"
        gauge = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", text, labels=(*_LABELS, "reason"))
        gauge.add_metric((*self._labels, "capacity"), now.num_waiting - now.num_waiting_deferred)
        gauge.add_metric((*self._labels, "deferred"), now.num_waiting_deferred)
        return gauge

    def _sleep_state(self, now: EngineStatistics) -> Metric:
        text = "1 at the state that the engine is in"
        gauge = GaugeMetricFamily("vllm:engine_sleep_state", text, labels=(*_LABELS, "sleep_state"))
        for level, state in enumerate(_SLEEP_STATES):
            gauge.add_metric((*self._labels, state), float(now.sleep_level == level))
        return gauge

    def _rejections(self, now: EngineStatistics) -> Metric:
        text = "Requests refused because too many waited"
        counter = CounterMetricFamily("vllm:admission_rejections", text, labels=(*_LABELS, "reason"))
        counter.add_metric((*self._labels, "queue_full"), now.num_refused)
        return counter

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        gauge.add_metric(self._labels, value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        counter.add_metric(self._labels, value)
        return counter


class _EngineInfo(Collector):
    """What is said in labels: the cache's settings, and which adapters are in use."""

    def __init__(
        self,
        labels: tuple[str, str],
        config: EngineConfig,
        statistics: Callable[[], EngineStatistics],
        lora_names: Callable[[], tuple[str, ...]],
    ) -> None:
        self._labels = labels
        self._config = config
        self._statistics = statistics
        self._lora_names = lora_names

    def collect(self) -> Iterator[Metric]:
        cache = self._config.cache
        yield self._info(
            "cache_config_info",
            "The KV cache's settings",
            block_size=str(cache.block_size),
            enable_prefix_caching=str(cache.enable_prefix_caching),
            num_gpu_blocks=str(self._statistics().num_blocks),
        )
        if self._config.lora is not None:
            yield self._info(
                "lora_requests_info",
                "The adapters that open requests use",
                max_lora=str(self._config.lora.max_loras),
                running_lora_adapters=",".join(self._lora_names()),
                waiting_lora_adapters="",
            )

    def describe(self) -> Iterable[Metric]:
        return ()

    def _info(self, name: str, text: str, **info: str) -> Metric:
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=(*_LABELS, *info))
        gauge.add_metric((*self._labels, *info.values()), 1.0)
        return gauge


def _one_two_five(limit: int) -> Iterator[float]:
    """1, 2, 5, 10, ... up to `limit`, and one more where `limit` lies between two."""
    power = 1
    while True:
        for step in (1, 2, 5):
            yield float(step * power)
            if step * power >= limit:
                return
        power *= 10
