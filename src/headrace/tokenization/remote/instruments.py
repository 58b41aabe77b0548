"""The metrics of the pool of remote tokenizers, named `headrace_remote_tokenizer_*`.

Models come from discovery; a name that only a client gave is counted as `(unknown)`, so that clients make no series.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.metrics import TOKENIZATION_BUCKETS_S
from headrace.tokenization.remote.fallback import FallbackReason

_ENCODE_BUCKETS_S = (*TOKENIZATION_BUCKETS_S, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNKNOWN_MODEL = "(unknown)"


class RemoteInstruments:
    """Counters, histograms and the gauge, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "headrace_remote_tokenizer"
        self._active = Gauge(f"{prefix}_pool_active_tokenizers", "Remote tokenizers in the pool.", registry=registry)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"{prefix}_{name}", help_text, labels, registry=registry)

        self._created = counter("pool_creation_successes", "Remote tokenizers that were made.")
        self._not_created = counter("pool_creation_failures", "Remote tokenizers that could not be made.")
        self._unhealthy = counter("pool_unhealthy_tokenizers", "Times a remote tokenizer was found unhealthy.")
        self._requests = counter("pool_requests", "Requests to the pool.", "model")
        self._retries = counter("retries", "Attempts after the first.", "model")
        self._fallbacks = counter("fallbacks", "Requests that no endpoint answered.", "model", "reason")
        self._parity = counter("parity_checks", "Remote ids compared with local ones, by result.", "model", "result")
        self._latency = Histogram(
            f"{prefix}_pool_latency_seconds",
            "Time to find or make a remote tokenizer for a request.",
            ("model",),
            buckets=TOKENIZATION_BUCKETS_S,
            registry=registry,
        )
        self._encode = Histogram(
            f"{prefix}_encode_seconds",
            "Time of the attempt that gave the ids.",
            ("model",),
            buckets=_ENCODE_BUCKETS_S,
            registry=registry,
        )

    def read_num_active(self, read: Callable[[], int]) -> None:
        self._active.set_function(read)

    def created(self) -> None:
        self._created.inc()

    def not_created(self) -> None:
        self._not_created.inc()

    def became_unhealthy(self) -> None:
        self._unhealthy.inc()

    def requested(self, *, model: str) -> None:
        self._requests.labels(model).inc()

    def retried(self, *, model: str) -> None:
        self._retries.labels(model).inc()

    def fell_back(self, *, model: str, reason: FallbackReason) -> None:
        self._fallbacks.labels(model, reason).inc()

    def compared(self, *, model: str, result: str) -> None:
        self._parity.labels(model, result).inc()

    def chosen(self, *, model: str, latency_s: float) -> None:
        self._latency.labels(model).observe(latency_s)

    def encoded(self, *, model: str, encode_s: float) -> None:
        self._encode.labels(model).observe(encode_s)
