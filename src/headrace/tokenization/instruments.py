"""The metrics of the tokenization service."""

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.metrics import TOKENIZATION_BUCKETS_S


class Instruments:
    """Histograms and counters named `headrace_tokenization_*`, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_lane = ("model", "lane")
        self._queue_wait = Histogram(
            "headrace_tokenization_queue_wait_seconds",
            "Time a text waited for a thread.",
            by_lane,
            buckets=TOKENIZATION_BUCKETS_S,
            registry=registry,
        )
        self._encode = Histogram(
            "headrace_tokenization_encode_seconds",
            "Time of the call that encoded a text, with those that shared the call.",
            by_lane,
            buckets=TOKENIZATION_BUCKETS_S,
            registry=registry,
        )
        self._lookups = Counter(
            "headrace_tokenization_cache_lookups",
            "Texts looked up in the cache, by result: hit, flight (being encoded) or miss.",
            ("model", "result"),
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "headrace_tokenization_cache_bytes", "Memory of the cached texts and ids.", registry=registry
        )
        self._queue_depth = Gauge(
            "headrace_tokenization_queue_depth", "Texts that wait for a thread.", ("lane",), registry=registry
        )
        # Looking labels up costs more than counting: once for each pair is enough. Models come from the operator.
        self._of_lane = cache(lambda *labels: (self._queue_wait.labels(*labels), self._encode.labels(*labels)))
        self._of_lookup = cache(self._lookups.labels)

    def read_cache_bytes(self, read: Callable[[], int]) -> None:
        self._cache_bytes.set_function(read)

    def read_queue_depth(self, lane: str, read: Callable[[], int]) -> None:
        self._queue_depth.labels(lane).set_function(read)

    def encoded(self, *, model: str, lane: str, queue_wait_s: float, encode_s: float) -> None:
        queue_wait, encode = self._of_lane(model, lane)
        queue_wait.observe(queue_wait_s)
        encode.observe(encode_s)

    def looked_up(self, *, model: str, result: str) -> None:
        self._of_lookup(model, result).inc()
