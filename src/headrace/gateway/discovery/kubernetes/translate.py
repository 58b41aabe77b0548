"""Turns pods and EndpointSlices into the endpoints that they are. Pure.

A pod is an endpoint while it is ready, not being deleted and not marked for draining: what is ready and not being
deleted is also what Kubernetes gives a Service's traffic. Of a Service's endpoints those that are being deleted but
still serve are used while there are no others, as kube-proxy does.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.errors import SettingsError
from headrace.gateway.discovery.kubernetes.marks import Marks, has_model, read_marks
from headrace.gateway.discovery.kubernetes.objects import EndpointSlice, Pod, SliceConditions, SliceEndpoint, SlicePort
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.upstream.address import Address

_DEFAULT_PORT = 8000
_PORT_NAMES = ("openai", "http", "serve", "api")
_RAY_NODE_TYPE = "ray.io/node-type"
_STORM_GROUP_INDEX = "stormservice.orchestration.aibrix.ai/pod-group-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the source's entry says of all endpoints found; labels say more of one."""

    origin: str
    takes_all: bool = False
    """Whether pods count that are not labelled with a model."""
    port: str | None = None
    """Name or number, where no label gives it."""
    api_key: str | None = field(default=None, repr=False)
    weight: float = 1.0
    engine: str | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An endpoint in an object."""

    spec: EndpointSpec
    owner: str
    """The pod behind it, which may have an address of each family."""
    is_last_resort: bool = False
    """It is being deleted, and taken only while there is nothing better."""


def endpoints_of_pod(pod: Pod, rules: Rules) -> tuple[Found, ...]:
    """The endpoint of a pod, or nothing. Raises SettingsError for a label that cannot be read."""
    meta = pod.metadata
    if not (rules.takes_all or has_model(meta)) or _is_part_of_an_engine(pod) or not _is_ready(pod):
        return ()
    marks = read_marks(meta)
    if marks.is_draining:
        return ()
    port = marks.port or _port_of_pod(pod, wanted=rules.port)
    return (Found(spec=_spec(pod.status.pod_ip, port, marks, rules), owner=meta.key),)


def endpoints_of_slice(part: EndpointSlice, rules: Rules) -> tuple[Found, ...]:
    """The endpoints of a part of a Service. Labels of a Service stand on its parts too. Raises SettingsError."""
    if part.metadata.deletion_timestamp is not None or part.address_type == "FQDN":
        return ()
    marks = read_marks(part.metadata)
    port = marks.port or _port_of_slice(part.ports or [], wanted=rules.port)
    if marks.is_draining or port is None:
        return ()
    return tuple(_in_slice(part, port, marks, rules))


def choose(found: Iterable[Found]) -> tuple[EndpointSpec, ...]:
    """Each engine once, ordered by its URL; IPv4 where a pod has both families."""
    every = list(found)
    usable = [one for one in every if not one.is_last_resort] or every
    by_owner: dict[str, EndpointSpec] = {}
    for one in sorted(usable, key=lambda one: (":" in one.spec.address.host, one.spec.url)):
        by_owner.setdefault(one.owner, one.spec)
    by_url = {spec.url: spec for spec in by_owner.values()}
    return tuple(by_url[url] for url in sorted(by_url))


def _in_slice(part: EndpointSlice, port: int, marks: Marks, rules: Rules) -> Iterator[Found]:
    for endpoint in part.endpoints or ():
        conditions = endpoint.conditions or SliceConditions()
        is_ready = conditions.ready is not False and not conditions.terminating
        is_serving = conditions.serving if conditions.serving is not None else conditions.ready is not False
        if not (endpoint.addresses and (is_ready or is_serving)):
            continue
        # Several addresses of one endpoint are the same engine.
        spec = _spec(endpoint.addresses[0], port, marks, rules)
        owner = _owner(endpoint, namespace=part.metadata.namespace) or spec.url
        yield Found(spec=spec, owner=owner, is_last_resort=not is_ready)


def _owner(endpoint: SliceEndpoint, *, namespace: str) -> str | None:
    target = endpoint.target_ref
    return f"{namespace}/{target.name}" if target is not None and target.kind == "Pod" else None


def _is_part_of_an_engine(pod: Pod) -> bool:
    """Whether another pod answers for it: Ray's head, or the first of a group."""
    labels = pod.metadata.labels or {}
    return labels.get(_RAY_NODE_TYPE) == "worker" or labels.get(_STORM_GROUP_INDEX, "0") != "0"


def _is_ready(pod: Pod) -> bool:
    status = pod.status
    is_ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions or ())
    return bool(status.pod_ip) and is_ready and pod.metadata.deletion_timestamp is None


def _port_of_pod(pod: Pod, *, wanted: str | None) -> int:
    ports = {
        port.name or str(port.container_port): port.container_port
        for container in pod.spec.containers or ()
        for port in container.ports or ()
        if port.protocol == "TCP"
    }
    chosen = _choose_port(ports, wanted=wanted)
    return _DEFAULT_PORT if chosen is None else chosen


def _port_of_slice(ports: list[SlicePort], *, wanted: str | None) -> int | None:
    named = {port.name or str(port.port): port.port for port in ports if port.port and port.protocol in {None, "TCP"}}
    return _choose_port(named, wanted=wanted)


def _choose_port(ports: dict[str, int], *, wanted: str | None) -> int | None:
    """By name or number where one is wanted; else one with a well-known name, the usual one, or the first."""
    if wanted is not None:
        if wanted in ports:
            return ports[wanted]
        if wanted.isdigit():
            return int(wanted)
        raise SettingsError(f"no port is called {wanted!r}; there are {', '.join(ports) or 'none'}")
    for name in _PORT_NAMES:
        if name in ports:
            return ports[name]
    numbers = list(ports.values())
    return _DEFAULT_PORT if _DEFAULT_PORT in numbers else next(iter(numbers), None)


def _spec(ip: str, port: int, marks: Marks, rules: Rules) -> EndpointSpec:
    try:
        is_ipv6 = ipaddress.ip_address(ip).version == 6
    except ValueError as error:
        raise SettingsError(f"{ip!r} is no IP address") from error
    host = f"[{ip}]" if is_ipv6 else ip
    is_tls = marks.scheme == "https"
    address = Address(url=f"{marks.scheme}://{host}:{port}", host=ip, port=port, is_tls=is_tls, prefix=b"")
    return EndpointSpec(
        address,
        weight=marks.weight if marks.weight is not None else rules.weight,
        api_key=rules.api_key,
        engine=marks.engine or rules.engine,
        models=(marks.model,) if marks.model is not None else rules.models,
        kv_events=marks.event_source(host),
        origin=rules.origin,
    )
