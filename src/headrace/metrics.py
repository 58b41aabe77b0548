"""The buckets and the registry that every component's metrics share. Each component declares its own metrics beside
its code; what is here is only what they must agree on."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

TOKENIZATION_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1)
"""Upper bounds, in seconds, of every tokenization histogram."""

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds, in seconds, of request and token latencies."""

CONTENT_TYPE = CONTENT_TYPE_LATEST


def expose(registry: CollectorRegistry) -> bytes:
    """The text exposition of `registry`, to be served as `CONTENT_TYPE`."""
    return generate_latest(registry)
