"""The life of an endpoint: it is added, probed, takes requests, is drained, and is forgotten with all that hangs on it.

Rule 1: an endpoint that its source no longer names gets no new request from that moment; those under way end, until a
deadline cuts them; then it is forgotten, and whoever comes later under its URL is somebody new.
Rule 2: one that is named again before that goes on as it was, with what is known of its cache.
Rule 3: what an operator drains stays drained until an operator says otherwise.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.aio.tasks import TaskOwner
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet

_LOG = logging.getLogger(__name__)
_CUT_TIMEOUT_S = 5.0
_BY_OPERATOR = "by the operator"
_LEAVING = "its source names it no more"


class Companion(Protocol):
    """A part of the gateway that keeps something for every endpoint."""

    def follow(self, endpoint: Endpoint, /) -> None:
        """It has joined the fleet."""

    async def forget(self, endpoint: Endpoint, /) -> None:
        """It has left; end what runs for it, and keep nothing of it. Called once for each that was followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleStatistics:
    """Endpoints now, and ever."""

    num_leaving: int
    num_drained: int
    num_added: int
    num_removed: int
    num_cut: int
    """Requests that were cut at the deadline of a drain."""


class Lifecycle:
    """Brings the fleet to the set that there should be. Belongs to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        make: Callable[[EndpointSpec], Endpoint],
        companions: Sequence[Companion],
        drain_timeout_s: float,
    ) -> None:
        self._fleet = fleet
        self._make = make
        self._companions = tuple(companions)
        self._drain_timeout_s = drain_timeout_s
        self._leaving: dict[Endpoint, asyncio.Task[None]] = {}
        self._drained: frozenset[str] = frozenset()
        self._num_added = 0
        self._num_removed = 0
        self._num_cut = 0
        self._owner = TaskOwner("leaving endpoints")

    def apply(self, wanted: Sequence[EndpointSpec]) -> None:
        """These endpoints, and no others, should be there from now on."""
        urls = {spec.url for spec in wanted}
        for endpoint in self._fleet.endpoints:
            if endpoint.name not in urls and endpoint not in self._leaving:
                self._leave(endpoint)
        for spec in wanted:
            known = self._fleet.find(spec.url)
            if known is None:
                self._join(spec)
            else:
                self._keep(known, spec)

    def set_drained(self, urls: frozenset[str]) -> None:
        """The endpoints that the operator wants drained, known or not."""
        self._drained = urls
        for endpoint in self._fleet.endpoints:
            if endpoint not in self._leaving:
                self._set_drain(endpoint)

    def is_leaving(self, endpoint: Endpoint) -> bool:
        """Whether no source names it any more."""
        return endpoint in self._leaving

    async def aclose(self) -> None:
        """Wait for no drain any more, and cut every connection. Idempotent. Companions are closed by their owner."""
        await self._owner.aclose()
        for endpoint in self._fleet.endpoints:
            endpoint.pool.close()

    def statistics(self) -> LifecycleStatistics:
        return LifecycleStatistics(
            num_leaving=len(self._leaving),
            num_drained=sum(one.why_draining is not None for one in self._fleet.endpoints),
            num_added=self._num_added,
            num_removed=self._num_removed,
            num_cut=self._num_cut,
        )

    def _join(self, spec: EndpointSpec) -> None:
        endpoint = self._make(spec)
        self._set_drain(endpoint)
        self._fleet.add(endpoint)
        self._num_added += 1
        _LOG.info("endpoint %s joins, from %s", endpoint.name, spec.origin)
        for companion in self._companions:
            companion.follow(endpoint)

    def _keep(self, endpoint: Endpoint, spec: EndpointSpec) -> None:
        task = self._leaving.pop(endpoint, None)
        if task is not None:
            task.cancel()
            self._set_drain(endpoint)
            _LOG.info("endpoint %s is back before its drain was over", endpoint.name)
        if spec != endpoint.spec:
            endpoint.describe(spec)

    def _set_drain(self, endpoint: Endpoint) -> None:
        if endpoint.name in self._drained:
            self._fleet.drain(endpoint, _BY_OPERATOR)
        else:
            self._fleet.undrain(endpoint)

    def _leave(self, endpoint: Endpoint) -> None:
        self._fleet.drain(endpoint, _LEAVING)
        _LOG.info("endpoint %s leaves with %d requests in flight", endpoint.name, endpoint.load.num_in_flight)
        self._leaving[endpoint] = self._owner.spawn(self._drain_and_forget(endpoint), name=f"drain of {endpoint.name}")

    async def _drain_and_forget(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await endpoint.load.wait_idle()
        except TimeoutError:
            self._num_cut += endpoint.load.num_in_flight
            _LOG.warning("endpoint %s: %d requests are cut", endpoint.name, endpoint.load.num_in_flight)
        # From here on there is no way back: who comes under this URL meanwhile is somebody new.
        del self._leaving[endpoint]
        await self._forget(endpoint)

    async def _forget(self, endpoint: Endpoint) -> None:
        self._fleet.remove(endpoint)
        endpoint.pool.close()
        try:
            async with asyncio.timeout(_CUT_TIMEOUT_S):
                await endpoint.load.wait_idle()
        except TimeoutError:
            _LOG.error("endpoint %s: %d requests do not end", endpoint.name, endpoint.load.num_in_flight)
        for companion in reversed(self._companions):
            await companion.forget(endpoint)
        self._num_removed += 1
        _LOG.info("endpoint %s is forgotten", endpoint.name)

    def __repr__(self) -> str:
        return f"Lifecycle({self._fleet!r}, num_leaving={len(self._leaving)})"
