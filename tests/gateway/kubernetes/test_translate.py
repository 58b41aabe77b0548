"""What pods and EndpointSlices mean as endpoints."""

import json

import msgspec
import pytest

from headrace.errors import SettingsError
from headrace.gateway.discovery.kubernetes.objects import EndpointSlice, Pod
from headrace.gateway.discovery.kubernetes.translate import Rules, choose, endpoints_of_pod, endpoints_of_slice
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.kv_events.sources import EventSource
from headrace.testing.fake_kubernetes import endpoint_slice, pod
from headrace.testing.fake_kubernetes_store import JsonObject

RULES = Rules(origin="kube://default/pods")
DEMO = {"model.aibrix.ai/name": "demo"}


def of_pod(one: JsonObject, rules: Rules = RULES) -> EndpointSpec | None:
    specs = choose(endpoints_of_pod(msgspec.json.decode(json.dumps(one), type=Pod), rules))
    return specs[0] if specs else None


def of_slices(*parts: JsonObject, rules: Rules = RULES) -> list[str]:
    decoded = [msgspec.json.decode(json.dumps(part), type=EndpointSlice) for part in parts]
    return [spec.url for spec in choose(one for part in decoded for one in endpoints_of_slice(part, rules))]


def endpoint(*addresses: str, pod_name: str | None = None, **conditions: bool | None) -> JsonObject:
    target = {"targetRef": {"kind": "Pod", "name": pod_name}} if pod_name else {}
    return {"addresses": list(addresses), "conditions": conditions} | target


@pytest.mark.parametrize("prefix", ["model.aibrix.ai", "aibrix.ai"])
def test_aibrix_labels_name_model_engine_and_port(prefix: str) -> None:
    labels = {f"{prefix}/name": "demo", f"{prefix}/engine": "vLLM", f"{prefix}/port": "9000"}

    spec = of_pod(pod("a", labels=labels))

    assert spec is not None
    assert (spec.url, spec.engine, spec.models) == ("http://10.0.0.1:9000", "vllm", ("demo",))


def test_our_labels_come_before_those_of_others() -> None:
    labels = {"headrace.dev/model": "ours", "headrace.dev/port": "1", "aibrix.ai/name": "old", "aibrix.ai/port": "2"}

    spec = of_pod(pod("a", labels=labels | DEMO))

    assert spec is not None
    assert (spec.url, spec.models) == ("http://10.0.0.1:1", ("ours",))


def test_annotations_stand_in_for_labels_which_come_first() -> None:
    annotations = {"model.aibrix.ai/name": "by annotation", "headrace.dev/port": "9001", "headrace.dev/weight": "2.5"}

    spec = of_pod(pod("a", labels={"aibrix.ai/port": "9002"}, annotations=annotations))

    assert spec is not None
    assert (spec.url, spec.models, spec.weight) == ("http://10.0.0.1:9002", ("by annotation",), 2.5)


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([], 8000),
        ([("metrics", 9090)], 9090),
        ([("metrics", 9090), ("http", 30000)], 30000),
        ([("metrics", 9090), ("", 8000)], 8000),
    ],
)
def test_without_a_label_the_container_ports_tell(ports: list[tuple[str, int]], port: int) -> None:
    spec = of_pod(pod("a", labels=DEMO, ports=ports))

    assert spec is not None
    assert spec.address.port == port


def test_a_port_asked_for_by_name_is_found_among_the_containers() -> None:
    one = pod("a", labels=DEMO, ports=[("http", 8000), ("grpc", 50051)])

    spec = of_pod(one, Rules(origin="", port="grpc"))

    assert spec is not None
    assert spec.address.port == 50051


def test_a_port_name_that_no_container_has_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"no port is called 'grpc'; there are http"):
        of_pod(pod("a", labels=DEMO, ports=[("http", 8000)]), Rules(origin="", port="grpc"))


def test_an_ipv6_pod_has_its_address_in_brackets_in_its_url_only() -> None:
    spec = of_pod(pod("a", ip="fd00::a", labels=DEMO | {"headrace.dev/scheme": "https"}))

    assert spec is not None
    assert (spec.url, spec.address.host, spec.address.host_header) == (
        "https://[fd00::a]:8000",
        "fd00::a",
        b"[fd00::a]:8000",
    )


def test_kv_events_are_where_labels_say() -> None:
    plain = of_pod(pod("a", labels=DEMO))
    switched_on = of_pod(pod("a", ip="fd00::a", labels=DEMO | {"model.aibrix.ai/kv-events-enabled": "true"}))
    ports = {"headrace.dev/kv-events-port": "6000", "headrace.dev/kv-events-replay-port": "6001"}
    at_ports = of_pod(pod("a", labels=DEMO | ports, annotations={"headrace.dev/kv-events-topic": "kv@a@demo"}))

    assert plain is not None
    assert switched_on is not None
    assert at_ports is not None
    assert plain.kv_events is None
    assert switched_on.kv_events == EventSource("tcp://[fd00::a]:5557", "tcp://[fd00::a]:5558")
    assert at_ports.kv_events == EventSource("tcp://10.0.0.1:6000", "tcp://10.0.0.1:6001", "kv@a@demo")


@pytest.mark.parametrize(
    "one",
    [
        pod("not labelled"),
        pod("not ready", labels=DEMO, is_ready=False),
        pod("without address", labels=DEMO, ip=None),
        pod("to be drained", labels=DEMO, annotations={"headrace.dev/drain": "true"}),
        pod("to be drained by AIBrix", labels=DEMO, annotations={"aibrix.ai/draining": "true"}),
        pod("of Ray's workers", labels=DEMO | {"ray.io/node-type": "worker"}),
        pod("of a group's others", labels=DEMO | {"stormservice.orchestration.aibrix.ai/pod-group-index": "1"}),
        {"metadata": {"name": "bare", "labels": DEMO}},
        pod("deleted", labels=DEMO) | {"metadata": {"labels": DEMO, "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
    ids=lambda one: one["metadata"].get("name", "deleted"),
)
def test_no_endpoint_is_a_pod_that_is(one: JsonObject) -> None:
    assert of_pod(one) is None


def test_a_selector_takes_pods_without_a_model_label() -> None:
    spec = of_pod(pod("a", labels={"app": "vllm"}), Rules(origin="", takes_all=True))

    assert spec is not None
    assert spec.models == ()


@pytest.mark.parametrize(
    "labels",
    [
        {"headrace.dev/port": "http"},
        {"model.aibrix.ai/port": "70000"},
        {"headrace.dev/weight": "0"},
        {"headrace.dev/scheme": "grpc"},
        {"headrace.dev/kv-events-port": "-1"},
    ],
)
def test_a_label_that_cannot_be_read_is_refused_with_its_value(labels: dict[str, str]) -> None:
    (value,) = labels.values()

    with pytest.raises(SettingsError, match=f"{value!r}"):
        of_pod(pod("a", labels=DEMO | labels))


def test_what_the_entry_says_holds_unless_a_label_says_other() -> None:
    rules = Rules(origin="", api_key="secret", weight=3.0, engine="sglang", models=("m",), takes_all=True)

    plain = of_pod(pod("a"), rules)
    labelled = of_pod(pod("a", labels=DEMO | {"headrace.dev/engine": "vllm", "headrace.dev/weight": "1"}), rules)

    assert plain is not None
    assert labelled is not None
    assert (plain.weight, plain.engine, plain.models, plain.api_key) == (3.0, "sglang", ("m",), "secret")
    assert (labelled.weight, labelled.engine, labelled.models, labelled.api_key) == (1.0, "vllm", ("demo",), "secret")


@pytest.mark.parametrize(
    ("conditions", "is_taken"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({}, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
    ],
)
def test_an_endpoint_of_a_service_is_taken_by_its_conditions(conditions: dict[str, bool], is_taken: bool) -> None:
    part = endpoint_slice("s", service="engines", endpoints=[endpoint("10.0.0.1", **conditions)])

    assert of_slices(part) == (["http://10.0.0.1:8000"] if is_taken else [])


def test_what_is_being_deleted_but_serves_is_taken_only_while_there_is_nothing_better() -> None:
    ending = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    ready = endpoint("10.0.0.2", ready=True, serving=True, terminating=False)

    assert of_slices(endpoint_slice("s", service="e", endpoints=[ending, ready])) == ["http://10.0.0.2:8000"]
    assert of_slices(endpoint_slice("s", service="e", endpoints=[ending])) == ["http://10.0.0.1:8000"]


def test_a_pod_with_both_address_families_is_one_endpoint() -> None:
    four = endpoint_slice("four", service="e", endpoints=[endpoint("10.0.0.1", pod_name="a")])
    six = endpoint_slice(
        "six",
        service="e",
        endpoints=[endpoint("fd00::1", pod_name="a"), endpoint("fd00::2", pod_name="b")],
        address_type="IPv6",
    )

    assert of_slices(six, four) == ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]


def test_labels_of_a_service_hold_for_its_endpoints() -> None:
    part = endpoint_slice("s", service="e", endpoints=[endpoint("10.0.0.1")], labels={"headrace.dev/port": "9000"})

    assert of_slices(part) == ["http://10.0.0.1:9000"]


def test_nulls_in_a_slice_are_read_as_nothing() -> None:
    part = endpoint_slice("s", service="e", endpoints=[]) | {"endpoints": None, "ports": None}

    assert of_slices(part) == []
