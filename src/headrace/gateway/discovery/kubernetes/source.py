"""Follows a cluster: list, then watch from there, for ever.

What the API server told last stays good while it cannot be reached. A watch that ends in good order goes on from where
it ended; after anything else there is a pause, of a random length that grows with every failure in a row.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from headrace.errors import SettingsError, UpstreamError
from headrace.gateway.discovery.entry import EndpointEntry
from headrace.gateway.discovery.kubernetes.client import KubernetesClient, ObjectApi, VersionExpiredError
from headrace.gateway.discovery.kubernetes.objects import Decoder, EndpointSlice, ObjectT, Pod, WatchError
from headrace.gateway.discovery.kubernetes.replica import Replica
from headrace.gateway.discovery.kubernetes.target import parse_target
from headrace.gateway.discovery.kubernetes.translate import Found, Rules, endpoints_of_pod, endpoints_of_slice
from headrace.gateway.discovery.source import EndpointSpec, Source, SourceStatistics

_LOG = logging.getLogger(__name__)
_WATCH_TIMEOUT_S = 120
_SHORTEST_WATCH_S = 1.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_MAX_REFUSALS_TOLD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesStatistics(SourceStatistics):
    """How it goes with the cluster."""

    num_objects: int
    """Pods or EndpointSlices followed."""
    num_lists: int
    num_watches: int
    refused: tuple[str, ...]
    """Objects that should be endpoints and are none, with the reason; some of them."""


def kubernetes_source(
    entry: EndpointEntry, *, where: str, api: ObjectApi | None = None, first_pause_s: float = _FIRST_PAUSE_S
) -> Source:
    """The source of an entry with a `kube://` URL; see `target`. What else the entry says holds for all endpoints found
    there, unless a label says other. `api` stands in for the cluster in tests; `first_pause_s` doubles with every
    failure in a row.

    Raises SettingsError for an entry that is none, or when the extra `kubernetes` is not installed.
    """
    name = entry.url
    target = parse_target(name)
    if entry.kv_events is not None:
        raise SettingsError(f"{where} {name!r}: label pods with headrace.dev/kv-events-port in place of kv_events")
    rules = Rules(
        origin=name,
        takes_all=target.selector is not None,
        port=target.port,
        api_key=entry.api_key,
        weight=entry.weight if entry.weight is not None else 1.0,
        engine=entry.engine,
        models=entry.models,
    )
    client = api or KubernetesClient(target)
    if target.kind == "endpointslices":
        of_slice = partial(endpoints_of_slice, rules=rules)
        return KubernetesSource(EndpointSlice, translate=of_slice, name=name, api=client, first_pause_s=first_pause_s)
    of_pod = partial(endpoints_of_pod, rules=rules)
    return KubernetesSource(Pod, translate=of_pod, name=name, api=client, first_pause_s=first_pause_s)


class KubernetesSource(Generic[ObjectT]):
    """See `Source`."""

    def __init__(
        self,
        object_type: type[ObjectT],
        *,
        translate: Callable[[ObjectT], tuple[Found, ...]],
        name: str,
        api: ObjectApi,
        first_pause_s: float,
    ) -> None:
        self.name = name
        self._first_pause_s = first_pause_s
        self._api = api
        self._decoder: Decoder[ObjectT] = Decoder(object_type)
        self._replica: Replica[ObjectT] = Replica(translate)
        self._told: tuple[EndpointSpec, ...] | None = None
        self._told_refusals: dict[str, str] = {}
        self._trouble: str | None = None
        self._num_failures = 0
        """In a row."""
        self._num_troubles = 0
        self._num_lists = 0
        self._num_watches = 0

    async def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        """See `Source`."""
        try:
            while True:
                try:
                    async with contextlib.aclosing(self._follow()) as changes:
                        async for _ in changes:
                            specs = self._replica.endpoints()
                            if specs != self._told:
                                self._told = specs
                                yield specs
                except UpstreamError as error:
                    await self._pause_after(error)
        finally:
            await self._api.aclose()

    @property
    def version(self) -> str | None:
        """Up to where the cluster's changes are known."""
        return self._replica.version

    def statistics(self) -> KubernetesStatistics:
        refused = [f"{name}: {why}" for name, why in sorted(self._replica.refused.items())]
        return KubernetesStatistics(
            num_endpoints=len(self._told or ()),
            trouble=self._trouble,
            num_troubles=self._num_troubles,
            num_objects=len(self._replica),
            num_lists=self._num_lists,
            num_watches=self._num_watches,
            refused=tuple(refused[:_MAX_REFUSALS_TOLD]),
        )

    def __repr__(self) -> str:
        state = self._trouble or "well"
        return f"KubernetesSource({self.name}, num_endpoints={len(self._told or ())}, {state})"

    async def _follow(self) -> AsyncGenerator[None, None]:
        """List if need be, then watch until the server ends it; says whenever something may have changed."""
        if self._replica.version is None:
            await self._list()
            yield
        loop = asyncio.get_running_loop()
        begun_s, num_events = loop.time(), 0
        self._num_watches += 1
        # Gateways that started together should not come back together.
        timeout_s = int(_WATCH_TIMEOUT_S * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
        lines = self._api.watch(version=self._replica.version or "", timeout_s=timeout_s)
        async with contextlib.aclosing(lines):
            async for line in lines:
                num_events += 1
                self._apply(line)
                yield
        if not num_events and loop.time() - begun_s < _SHORTEST_WATCH_S:
            raise UpstreamError("the API server ended a watch at once")
        self._note_well()

    async def _list(self) -> None:
        """Read all objects, and replace ours."""
        self._num_lists += 1
        objects: list[ObjectT] = []
        continue_token = ""
        while True:
            page = self._decoder.page(await self._api.list_page(continue_token=continue_token))
            objects += page.items or ()
            continue_token = page.metadata.continue_token
            if not continue_token:
                break
        self._replica.replace(objects, version=page.metadata.resource_version)
        self._trouble = None
        self._log_refusals()

    def _apply(self, line: bytes) -> None:
        event = self._decoder.event(line)
        if isinstance(event, WatchError):
            status = event.status
            if status.is_expired:
                raise VersionExpiredError(status.message or "410 Gone")
            raise UpstreamError(f"the API server ended a watch: {status.code} {status.reason}: {status.message}")
        if event is not None:
            self._replica.apply(event)
        self._note_well()
        self._log_refusals()

    async def _pause_after(self, error: UpstreamError) -> None:
        self._num_failures += 1
        if isinstance(error, VersionExpiredError):
            self._replica.version = None
            _LOG.info("%s: listing anew: %s", self.name, error.message)
        else:
            self._trouble = error.message
            self._num_troubles += 1
            _LOG.warning("%s: %s; the endpoints known stay", self.name, error.message)
        longest_s = min(_MAX_PAUSE_S, self._first_pause_s * 2.0 ** min(self._num_failures, 16))
        await asyncio.sleep(random.uniform(0, longest_s))  # noqa: S311 - no secret

    def _note_well(self) -> None:
        self._num_failures = 0
        self._trouble = None

    def _log_refusals(self) -> None:
        refused = self._replica.refused
        if refused != self._told_refusals:
            for name in refused.keys() - self._told_refusals.keys():
                _LOG.warning("%s: %s is no endpoint: %s", self.name, name, refused[name])
            self._told_refusals = dict(refused)
