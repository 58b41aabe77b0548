"""The gateway's Prometheus metrics, `headrace_gateway_*`. Label values come from small closed sets: endpoints, known
models, routes and reason words; never from what a client writes."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.metrics import LATENCY_BUCKETS_S

_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_PREFIX = "headrace_gateway_"


class Instruments:
    """All counters, gauges and histograms of one gateway, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(_PREFIX + name, text, registry=registry, buckets=buckets)

        self.registry = registry
        self.requests = counter("requests", "Requests answered, by route and status.", ("route", "status"))
        self.attempts = counter("attempts", "Requests sent to an endpoint, by outcome.", ("endpoint", "outcome"))
        self.retries = counter("retries", "Requests sent once more, to another endpoint.")
        self.disconnects = counter("client_disconnects", "Requests whose client left before the end.")
        self.broken_streams = counter("broken_answers", "Answers that ended in the middle.", ("endpoint",))
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens as endpoints reported them.", ("model",))
        self.cached_tokens = counter("cached_prompt_tokens", "Of these, cached, as endpoints reported.", ("model",))
        self.completion_tokens = counter("completion_tokens", "Completion tokens as reported.", ("model",))
        self.counted = counter("prompt_counts", "Whether prompts could be counted, and why not.", ("why",))
        self.parity = counter(
            "parity", "Prompt tokens counted here against those reported.", ("model", "result", "reason")
        )
        self.refusals = counter("refusals", "Requests kept out by keys, limits and queues.", ("why",))
        self.bills = counter("bills", "Admitted requests settled, by where their usage is from.", ("source",))
        self.cost = counter("cost", "What requests cost, in the currency of the prices.", ("model",))
        self.cached_parity = counter(
            "cached_parity", "Cached prompt tokens predicted here against those reported.", ("model", "result")
        )
        self.overhead_s = histogram(
            "overhead_seconds", "From a whole request received to its sending.", _OVERHEAD_BUCKETS_S
        )
        self.first_byte_s = histogram("first_byte_seconds", "From the sending to the answer's head.", LATENCY_BUCKETS_S)
        self.in_flight = Gauge(
            _PREFIX + "in_flight", "Requests in hand, by endpoint.", ("endpoint",), registry=registry
        )
        self.prefix_index_bytes = Gauge(
            _PREFIX + "prefix_index_bytes", "Memory for what is known of the endpoints' caches.", registry=registry
        )
        self.kv_event_sources = Gauge(
            _PREFIX + "kv_event_sources", "Endpoints' caches that are followed by KV events.", registry=registry
        )
        self.healthy = Gauge(_PREFIX + "endpoint_healthy", "1 if probes succeed.", ("endpoint",), registry=registry)
        self.queued = Gauge(
            _PREFIX + "queued_requests", "Requests that wait for a place.", ("priority",), registry=registry
        )
        self.limits_are_local = Gauge(
            _PREFIX + "limits_are_local", "1 while limits that should be shared are not.", registry=registry
        )
        self.keys_are_stale = Gauge(
            _PREFIX + "keys_are_stale", "1 while the file of keys cannot be read.", registry=registry
        )
        self.connections = Gauge(_PREFIX + "client_connections", "Client connections open.", registry=registry)
