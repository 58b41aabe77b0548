"""How many engines there should be, from what they have in hand. Pure; called by Ray Serve's controller.

Requests reach engines through the gateway and not through Ray, so Ray cannot count them: each engine tells.
"""

from collections.abc import Mapping
from typing import Any, Protocol

QUEUE_METRIC = "headrace_queue"


class ScalingConfig(Protocol):
    """Of Ray's AutoscalingConfig."""

    target_ongoing_requests: float


class ScalingContext(Protocol):
    """Of Ray's AutoscalingContext."""

    target_num_replicas: int
    config: ScalingConfig
    aggregated_metrics: Mapping[str, Mapping[Any, float]]


def scale_by_queue(context: ScalingContext) -> tuple[float, dict[str, object]]:
    """The number of engines at which each has as many requests, running and waiting, as is aimed at. As many as now
    while none has told. Ray rounds up, keeps to the limits and waits as configured."""
    queues = (context.aggregated_metrics or {}).get(QUEUE_METRIC) or {}
    if not queues:
        return context.target_num_replicas, {}
    return sum(queues.values()) / context.config.target_ongoing_requests, {}
