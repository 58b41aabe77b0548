"""What the process that starts several workers counts of them; the workers count the rest."""

from prometheus_client import CollectorRegistry

from headrace.tokenization.tallies import CounterTally, GaugeTally


class WorkerInstruments:
    """The metrics of the supervisor, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.num_ready = GaugeTally("headrace_gateway_workers_ready", "Workers that serve.", (), registry=registry)
        self.starts = CounterTally("headrace_gateway_worker_starts", "Workers started.", (), registry=registry)
