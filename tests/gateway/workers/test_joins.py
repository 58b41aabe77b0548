"""What workers say of themselves, joined into what one gateway would say."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from headrace.gateway.endpoints.wanted import EndpointDetails, EndpointList, EndpointState
from headrace.gateway.workers.metrics import join_metrics
from headrace.gateway.workers.states import join_endpoints, join_states
from headrace.metrics import expose


def exposition(amount: float) -> bytes:
    registry = CollectorRegistry()
    Counter("requests", "Requests {of all}.", ["route"], registry=registry).labels('a{"}\\n').inc(amount)
    Gauge("connections", "Open.", registry=registry).set(amount)
    Histogram("seconds", "Times.", registry=registry, buckets=(1, 2)).observe(amount)
    return expose(registry)


def test_joined_metrics_are_those_of_all_workers_with_a_label_each() -> None:
    joined = list(text_string_to_metric_families(join_metrics({0: exposition(1), 1: exposition(2)}).decode()))
    apart = [
        (sample.name, sorted((sample.labels | {"worker": str(number)}).items()), sample.value)
        for number in (0, 1)
        for family in text_string_to_metric_families(exposition(number + 1).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]

    names = [family.name for family in joined]
    assert len(names) == len(set(names))
    assert {family.type for family in joined} >= {"counter", "gauge", "histogram"}
    together = [
        (sample.name, sorted(sample.labels.items()), sample.value)
        for family in joined
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    assert sorted(together) == sorted(apart)


def test_a_label_with_an_end_of_line_that_is_none_in_this_format_stays_whole() -> None:
    exposition = b'# HELP a_total A.\n# TYPE a_total counter\na_total{model="x\ry"} 1.0\n'

    assert join_metrics({0: exposition}).endswith(b'\na_total{worker="0",model="x\ry"} 1.0\n')


def test_metrics_of_no_worker_are_none() -> None:
    assert join_metrics({}) == b""


def test_joined_states_add_counts_up_and_join_what_is_named() -> None:
    one = {
        "num_requests": 3, "uptime_s": 10.0, "is_healthy": False, "why": None, "requests_per_s_history": [1.0, 2.0],
        "endpoints": [{"name": "a", "num_done": 1, "kv_cache_usage": 0.5}], "num_waiting": {"batch": 1},
        "keys": [{"name": "k", "cost": "1.25", "prompt_tokens": 7}], "exact_ratio": 1.0, "num_keys": 2,
        "decisions": [{"time_s": 5.0}, {"time_s": 1.0}],
    }  # fmt: skip
    two = {
        "num_requests": 4, "uptime_s": 9.0, "is_healthy": True, "why": "x", "requests_per_s_history": [5.0],
        "endpoints": [{"name": "a", "num_done": 2, "kv_cache_usage": 0.25}, {"name": "b", "num_done": 9}],
        "num_waiting": {"batch": 2, "interactive": 1}, "keys": [{"name": "k", "cost": "0.75", "prompt_tokens": 3}],
        "exact_ratio": 0.5, "num_keys": 2, "decisions": [{"time_s": 3.0}],
    }  # fmt: skip

    assert join_states([one, two]) == {
        "num_requests": 7, "uptime_s": 10.0, "is_healthy": True, "why": "x", "requests_per_s_history": [1.0, 7.0],
        "endpoints": [{"name": "a", "num_done": 3, "kv_cache_usage": 0.5}, {"name": "b", "num_done": 9}],
        "num_waiting": {"batch": 3, "interactive": 1}, "keys": [{"name": "k", "cost": "2.00", "prompt_tokens": 10}],
        "exact_ratio": 0.75, "num_keys": 2, "decisions": [{"time_s": 5.0}, {"time_s": 3.0}, {"time_s": 1.0}],
    }  # fmt: skip


def details(url: str, state: EndpointState, *, num_done: int = 0) -> EndpointDetails:
    return EndpointDetails(
        url=url, origin="o", state=state, why="" if state == "ready" else state, is_healthy=state == "ready",
        breaker="closed", weight=1.0, models=[], has_api_key=False, block_size=16, has_kv_events=False,
        num_in_flight=1, num_waiting_tokens=0, num_done=num_done, num_failed=0, num_cancelled=0, reported=None,
    )  # fmt: skip


def test_an_endpoint_is_as_well_as_the_worker_says_that_finds_it_best() -> None:
    lists = [
        EndpointList(data=[details("a", "down", num_done=1), details("b", "leaving")], sources=[]),
        EndpointList(data=[details("a", "ready", num_done=2)], sources=[]),
    ]
    joined = join_endpoints(lists)

    assert [(one.url, one.state, one.num_done, one.num_in_flight) for one in joined.data] == [
        ("a", "ready", 3, 2),
        ("b", "leaving", 0, 1),
    ]
    assert joined.data[0].why == "down"
