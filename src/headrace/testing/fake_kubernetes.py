"""A fake Kubernetes API server on a real socket, as far as discovery and `kubectl get` need one: discovery documents,
lists in pages, watches with bookmarks, create, patch and delete.

A test changes `store` through the methods here, or by HTTP as any client. Faults are queued and answer one request
each. Nothing sleeps but a watch, until its own time-out.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from headrace.testing.fake_kubernetes_store import KINDS, JsonObject, Kind, Selection, Store, StoreError
from headrace.testing.fake_upstream import Behaviour, Exchange, FakeUpstream, Received

PODS, SERVICES, ENDPOINT_SLICES = KINDS
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_WATCH_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What a path and its query ask for."""

    kind: Kind
    namespace: str | None
    name: str | None
    query: dict[str, str]

    def selection(self) -> Selection:
        name = self.name
        for part in filter(None, self.query.get("fieldSelector", "").split(",")):
            key, _, value = part.partition("=")
            if key != "metadata.name":
                raise StoreError(400, "BadRequest", f"field label not supported: {key}")
            name = value.lstrip("=")
        selector = self.query.get("labelSelector", "")
        return Selection(kind=self.kind, namespace=self.namespace, label_selector=selector, name=name)


class FakeKubernetes:
    """`async with FakeKubernetes() as cluster:` answers at `cluster.url`. With `token`, others get 401."""

    def __init__(self, *, token: str | None = None) -> None:
        self.store = Store()
        self.token = token
        self.forbidden: set[str] = set()
        """Plurals of resources that nobody may see."""
        self.faults: deque[Behaviour] = deque()
        """Each answers one request in place of the cluster."""
        self.expires_by_status = False
        """Whether a watch from a forgotten version gets 410 as its status, rather than as an event."""
        self.upstream = FakeUpstream(behaviour=self._answer)
        """The server itself: connections, counters, `wait_for`."""
        self._num_bookmarks = 0
        self._watchers: dict[int, Exchange] = {}
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return self.upstream.url

    @property
    def received(self) -> list[Received]:
        return self.upstream.received

    @property
    def num_watches(self) -> int:
        """Open now."""
        return len(self._watchers)

    def kubeconfig(self, *, namespace: str = "default") -> str:
        """The text of a kubeconfig file for it; JSON is YAML too."""
        user = {"token": self.token} if self.token is not None else {}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "me", "user": user}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": namespace}}],
                "current-context": "fake",
            }
        )

    # what tests do to the cluster

    def create(self, kind: Kind, one: JsonObject, *, namespace: str = "default") -> None:
        self.store.create(kind, one, namespace=namespace)
        self._changed.set()

    def patch(self, kind: Kind, name: str, patch: JsonObject, *, namespace: str = "default") -> None:
        self.store.patch(kind, name, patch, namespace=namespace)
        self._changed.set()

    def delete(self, kind: Kind, name: str, *, namespace: str = "default", grace_period_s: int | None = None) -> None:
        self.store.delete(kind, name, namespace=namespace, grace_period_s=grace_period_s)
        self._changed.set()

    def bookmark(self) -> None:
        """Send a bookmark to every watch that takes them."""
        self._num_bookmarks += 1
        self._changed.set()

    def cut_watches(self, *, after: bytes = b"") -> None:
        """Cut the connections of all watches, in the middle of an event if `after` is the beginning of one."""
        for exchange in tuple(self._watchers.values()):
            if after:
                exchange.writer.write(b"%x\r\n%b\r\n" % (len(after), after))
            exchange.keeps_alive = False
            exchange.writer.close()

    # HTTP

    async def _answer(self, exchange: Exchange) -> None:
        if self.faults:
            await self.faults.popleft()(exchange)
            return
        try:
            await self._serve(exchange)
        except StoreError as error:
            await _respond(exchange, _status(error), status=error.code)

    async def _serve(self, exchange: Exchange) -> None:
        request = exchange.request
        if self.token is not None and request.header("authorization") != f"Bearer {self.token}":
            raise StoreError(401, "Unauthorized", "Unauthorized")
        target = urlsplit(request.target)
        if (document := _document(target.path)) is not None:
            await _respond(exchange, document)
            return
        asked = _read(target.path, dict(parse_qsl(target.query)))
        if asked.kind.plural in self.forbidden:
            raise StoreError(403, "Forbidden", f"{asked.kind.plural} is forbidden: User cannot list resource")
        if asked.query.get("watch") in {"1", "true"}:
            await self._watch(exchange, asked)
        elif request.method == "GET" and asked.name is None:
            await _respond(exchange, self._list(asked))
        else:
            await _respond(exchange, self._do(request, asked), status=201 if request.method == "POST" else 200)

    def _do(self, request: Received, asked: _Request) -> JsonObject:
        """Read or change one object."""
        namespace = asked.namespace or "default"
        if request.method == "POST":
            done = self.store.create(asked.kind, request.json(), namespace=namespace)
        elif asked.name is None:
            raise StoreError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        elif request.method == "GET":
            return self.store.get(asked.kind, asked.name, namespace=namespace)
        elif request.method == "PATCH":
            done = self.store.patch(asked.kind, asked.name, request.json(), namespace=namespace)
        else:
            options = request.json() if request.body else {}
            grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
            grace_period_s = int(str(grace)) if grace is not None else None
            done = self.store.delete(asked.kind, asked.name, namespace=namespace, grace_period_s=grace_period_s)
        self._changed.set()
        return done

    def _list(self, asked: _Request) -> JsonObject:
        """One page. A token names the version of the first page and the number of objects told; what has changed since
        is refused with 410 once it is compacted, and else told as it is now."""
        version, _, begin = asked.query.get("continue", f"{self.store.version}:0").partition(":")
        self.store.changes_after(int(version))
        every = self.store.select(asked.selection())
        limit = int(asked.query.get("limit", "0")) or len(every)
        end = int(begin) + limit
        meta = {"resourceVersion": version} | ({"continue": f"{version}:{end}"} if end < len(every) else {})
        kind = asked.kind
        return {
            "apiVersion": kind.group_version,
            "kind": f"{kind.kind}List",
            "metadata": meta,
            "items": every[int(begin) : end],
        }

    async def _watch(self, exchange: Exchange, asked: _Request) -> None:
        selection = asked.selection()
        text = asked.query.get("resourceVersion", "")
        version = int(text or 0) or self.store.version
        is_expired = version < self.store.oldest
        if is_expired and self.expires_by_status:
            self.store.changes_after(version)
        await exchange.start_chunked(content_type="application/json")
        self._watchers[id(exchange)] = exchange
        try:
            if text in {"", "0"}:
                for one in self.store.select(selection):
                    await _tell(exchange, {"type": "ADDED", "object": one})
            async with asyncio.timeout(float(asked.query.get("timeoutSeconds", _WATCH_TIMEOUT_S))):
                await self._tell_changes(exchange, asked, selection, version)
        except TimeoutError:
            await exchange.chunk(b"")
        except StoreError as error:
            await _tell(exchange, {"type": "ERROR", "object": _status(error)})
            await exchange.chunk(b"")
        finally:
            del self._watchers[id(exchange)]

    async def _tell_changes(self, exchange: Exchange, asked: _Request, selection: Selection, version: int) -> None:
        num_bookmarks = self._num_bookmarks
        while True:
            for change in self.store.changes_after(version):
                if (event := change.event(selection)) is not None:
                    await _tell(exchange, event)
                version = change.version
            if num_bookmarks != self._num_bookmarks:
                num_bookmarks = self._num_bookmarks
                if asked.query.get("allowWatchBookmarks") in {"1", "true"}:
                    await _tell(exchange, _bookmark(asked.kind, version))
            while version == self.store.version and num_bookmarks == self._num_bookmarks:
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        await self.upstream.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.upstream.stop()


def pod(
    name: str,
    *,
    ip: str | None = "10.0.0.1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ports: Sequence[tuple[str, int]] = (),
    is_ready: bool = True,
    namespace: str = "default",
) -> JsonObject:
    """A running pod."""
    status: JsonObject = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    container_ports = [{"name": port_name, "containerPort": port} for port_name, port in ports]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "engine", "image": "engine:1", "ports": container_ports}]},
        "status": status,
    }


def ready_condition(is_ready: bool) -> JsonObject:
    """A patch of a pod that makes it ready, or not."""
    return {"status": {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]}}


def endpoint_slice(
    name: str,
    *,
    service: str,
    endpoints: Sequence[JsonObject],
    ports: Sequence[tuple[str, int]] = (("http", 8000),),
    address_type: str = "IPv4",
    labels: dict[str, str] | None = None,
) -> JsonObject:
    """A part of a Service; endpoints as the API writes them."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service} | (labels or {}),
        },
        "addressType": address_type,
        "endpoints": list(endpoints),
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"} for port_name, port in ports],
    }


async def _respond(exchange: Exchange, value: JsonObject, *, status: int = 200) -> None:
    await exchange.respond(json.dumps(value).encode(), status=status)


async def _tell(exchange: Exchange, event: JsonObject) -> None:
    await exchange.chunk(json.dumps(event).encode() + b"\n")


def _status(error: StoreError) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.code,
    }


def _bookmark(kind: Kind, version: int) -> JsonObject:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"type": "BOOKMARK", "object": {"apiVersion": kind.group_version, "kind": kind.kind, "metadata": meta}}


def _read(path: str, query: dict[str, str]) -> _Request:
    """`/api/v1[/namespaces/NAMESPACE]/PLURAL[/NAME]`, or under `/apis/GROUP/VERSION`."""
    root, *parts = path.strip("/").split("/")
    num_version_parts = 1 if root == "api" else 2
    group_version = "/".join(parts[:num_version_parts])
    rest = parts[num_version_parts:]
    namespace = rest[1] if len(rest) > 1 and rest[0] == "namespaces" else None
    rest = rest[2:] if namespace is not None else rest
    for kind in KINDS:
        if rest and (kind.group_version, kind.plural) == (group_version, rest[0]) and len(rest) <= 2:
            return _Request(kind=kind, namespace=namespace, name=rest[1] if len(rest) == 2 else None, query=query)
    raise StoreError(404, "NotFound", "the server could not find the requested resource")


def _document(path: str) -> JsonObject | None:
    """The documents by which clients find out what there is."""
    groups = sorted({kind.group_version for kind in KINDS} - {"v1"})
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0-fake", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in groups]}
    for group_version in ("v1", *groups):
        if path == (f"/api/{group_version}" if group_version == "v1" else f"/apis/{group_version}"):
            return _resources(group_version)
    return None


def _group(group_version: str) -> JsonObject:
    name, _, version = group_version.partition("/")
    entry = {"groupVersion": group_version, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def _resources(group_version: str) -> JsonObject:
    resources = [
        {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": True,
            "kind": kind.kind,
            "verbs": _VERBS,
            "shortNames": list(kind.short),
        }
        for kind in KINDS
        if kind.group_version == group_version
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
