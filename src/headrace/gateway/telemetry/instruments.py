"""The gateway's Prometheus metrics, `headrace_gateway_*`. Label values come from small closed sets: endpoints, known
models, routes and reason words; never from what a client writes. An endpoint's series go with it."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.gateway.parity.instruments import ParityInstruments
from headrace.metrics import LATENCY_BUCKETS_S
from headrace.tokenization.tallies import CounterTally, GaugeTally, HistogramTally

_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_PREFIX = "headrace_gateway_"


class Instruments:
    """All counters, gauges and histograms of one gateway, on one registry. For use in the loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> CounterTally:
            return CounterTally(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> GaugeTally:
            return GaugeTally(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> HistogramTally:
            return HistogramTally(_PREFIX + name, text, labels, registry=registry, buckets=buckets)

        ProcessCollector(registry=registry)
        self.info = gauge("info", "1; the labels say what runs.", "version", "policy")

        self.requests = counter("requests", "Requests answered, by route and status.", "route", "status")
        self.request_s = histogram(
            "request_seconds", "From a whole request received to the end of its answer.", buckets=LATENCY_BUCKETS_S
        )
        self.overhead_s = histogram(
            "overhead_seconds", "From a whole request received to its sending.", buckets=_OVERHEAD_BUCKETS_S
        )
        self.first_byte_s = histogram(
            "first_byte_seconds", "From the sending to the answer's head.", buckets=LATENCY_BUCKETS_S
        )
        self.attempts = counter("attempts", "Requests sent to an endpoint, by outcome.", "endpoint", "outcome")
        self.retries = counter("retries", "Requests sent once more, to another endpoint.")
        self.retries_refused = counter("retries_refused", "Requests not sent once more: the budget for it was spent.")
        self.disconnects = counter("client_disconnects", "Requests whose client left before the end.")
        self.broken_streams = counter("broken_answers", "Answers that ended in the middle.", "endpoint")
        self.connections = gauge("client_connections", "Client connections open.")
        self.concurrent = gauge("concurrent_requests", "Requests in hand, from their counting to their end.")
        self.max_concurrent = gauge("max_concurrent_requests", "As many are taken at a time.")

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens as endpoints reported them.", "model")
        self.cached_tokens = counter("cached_prompt_tokens", "Of these, cached, as endpoints reported.", "model")
        self.completion_tokens = counter("completion_tokens", "Completion tokens as reported.", "model")
        self.counted = counter("prompt_counts", "Whether prompts could be counted, and why not.", "why")
        self.parity = ParityInstruments(registry)

        self.refusals = counter("refusals", "Requests kept out by keys, limits and queues.", "why")
        self.queued = gauge("queued_requests", "Requests that wait for a place.", "priority")
        self.max_queued = gauge("max_queued_requests", "As many may wait, in each class.")
        self.bills = counter("bills", "Admitted requests settled, by where their usage is from.", "source")
        self.cost = counter("cost", "What requests cost, in the currency of the prices.", "model")
        self.limits_are_local = gauge("limits_are_local", "1 while limits that should be shared are not.")
        self.keys_are_stale = gauge("keys_are_stale", "1 while the file of keys cannot be read.")
        self.stale_sources = gauge("stale_sources", "Sources of endpoints that are in trouble: their last word holds.")

        self.healthy = gauge("endpoint_healthy", "1 if probes succeed.", "endpoint")
        self.in_flight = gauge("in_flight", "Requests in hand, by endpoint.", "endpoint")
        self.endpoint_prompt_tokens = counter(
            "endpoint_prompt_tokens", "Prompt tokens of answers that told how many were cached.", "endpoint"
        )
        self.endpoint_cached_tokens = counter("endpoint_cached_prompt_tokens", "Of these, cached.", "endpoint")
        self.kv_cache_usage = gauge(
            "endpoint_kv_cache_usage_ratio", "Part of the KV cache in use, as the endpoint reports, 0 to 1.", "endpoint"
        )
        self.prefix_index_bytes = gauge("prefix_index_bytes", "Memory for what is known of the endpoints' caches.")
        self.prefix_index_blocks = gauge("prefix_index_blocks", "Blocks known, each endpoint's counted.")
        self.kv_event_sources = gauge("kv_event_sources", "Endpoints' caches that are followed by KV events.")
        self.kv_event_batches = counter("kv_event_batches", "Batches of KV events that were read.")
        self.kv_event_gaps = counter("kv_event_gaps", "Gaps in KV events that no replay filled.")

        self._by_endpoint = (
            self.attempts,
            self.broken_streams,
            self.endpoint_prompt_tokens,
            self.endpoint_cached_tokens,
            *self.parity.by_endpoint,
        )

    def keep_endpoints(self, names: Iterable[str]) -> None:
        """Drop the series of all other endpoints."""
        kept = set(names)
        for tally in self._by_endpoint:
            at = tally.labels.index("endpoint")
            for gone in {labels[at] for labels in tally.by_labels()} - kept:
                tally.forget(endpoint=gone)
