"""/metrics under vLLM's names, so that its dashboards and routers read this server as well.

What the engine counts is asked of it when somebody scrapes; the rest is counted here, prompt by prompt.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.metrics import LATENCY_BUCKETS_S
from headrace.server.engine_seam import Engine

_LABELS = ("model_name", "engine")
_ENGINE_INDEX = "0"


class ServerMetrics:
    """The metrics of one engine."""

    def __init__(self, engine: Engine, *, model: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.registry.register(_EngineNumbers(engine, model))
        labels = (model, _ENGINE_INDEX)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that were begun").labels(*labels)
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated").labels(*labels)
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token"
        ).labels(*labels)
        self.request_latency = self._histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its end"
        ).labels(*labels)
        self._success = self._counter("request_success", "Requests by how they ended", "finished_reason")
        self._label_values = labels

    def count_finished(self, finished_reason: str) -> None:
        self._success.labels(*self._label_values, finished_reason).inc()

    def _counter(self, name: str, text: str, *more_labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*_LABELS, *more_labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=LATENCY_BUCKETS_S)


class _EngineNumbers(Collector):
    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._labels = (model, _ENGINE_INDEX)

    def collect(self) -> Iterable[Metric]:
        now = self._engine.statistics()
        yield self._gauge("num_requests_running", "Requests in the running batch", now.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait to run", now.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1", now.kv_cache_usage)
        yield self._counter("num_preemptions", "Requests put back to wait for want of blocks", now.num_preemptions)
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache", now.prefix_cache_queries
        )
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache", now.prefix_cache_hits)

    def describe(self) -> Iterable[Metric]:
        return ()  # without it the registry would ask the engine while it is being built

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        gauge.add_metric(self._labels, value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        counter.add_metric(self._labels, value)
        return counter
