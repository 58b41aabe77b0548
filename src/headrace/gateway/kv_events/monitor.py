"""Keeps the prefix index informed by all endpoints that publish KV events: finds their sources and follows them.

One task an endpoint and one a source, all in the event loop; ZMQ itself has one thread for all. pyzmq is imported when
the first source is found, so a gateway without events does without it.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.aio.tasks import TaskOwner
from headrace.errors import UpstreamError
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.kv_events.apply import EventSink
from headrace.gateway.kv_events.sources import EventSource, ask_sources
from headrace.gateway.prefix_index import ChainHashers, PrefixIndex

if TYPE_CHECKING:
    import zmq.asyncio

    from headrace.gateway.kv_events.subscription import Subscription

_LOG = logging.getLogger(__name__)
_ASK_INTERVAL_S = 10.0
_ASK_TIMEOUT_S = 2.0
_MAX_BLOCK_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventStatistics:
    """All sources together."""

    num_sources: int
    num_batches: int
    num_replayed: int
    num_unfilled_gaps: int
    num_restarts: int
    num_unreadable: int


class KvEventMonitor:
    """Follows the sources that are `configured` for an endpoint's URL, or that whoever found it names; others are asked
    for theirs, if `asks`."""

    def __init__(
        self,
        index: PrefixIndex,
        hashers: ChainHashers,
        *,
        configured: Mapping[str, tuple[EventSource, ...]],
        asks: bool,
    ) -> None:
        self._index = index
        self._hashers = hashers
        self._configured = configured
        self._asks = asks
        self._owner = TaskOwner("KV events")
        self._watches: dict[Endpoint, asyncio.Task[None]] = {}
        self._context: zmq.asyncio.Context | None = None
        self._followed: dict[Endpoint, dict[EventSource, tuple[Subscription, asyncio.Task[None]]]] = {}
        self._is_lame = False

    def follow(self, endpoint: Endpoint) -> None:
        """Begin to look for its sources, and to follow them."""
        self._watches[endpoint] = self._owner.spawn(self._watch(endpoint), name=f"KV event sources of {endpoint.name}")

    async def forget(self, endpoint: Endpoint) -> None:
        """Follow it no more; nothing is known of its cache then."""
        watch = self._watches.pop(endpoint)
        watch.cancel()
        await asyncio.wait([watch])
        await self._end(endpoint)

    async def aclose(self) -> None:
        """Follow nothing more, and close all sockets. Idempotent."""
        await self._owner.aclose()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def look(self, endpoint: Endpoint) -> None:
        """Find out the sources of an endpoint, and follow exactly those."""
        sources = self._configured.get(endpoint.name)
        if sources is None and endpoint.spec.kv_events is not None:
            sources = (endpoint.spec.kv_events,)
        if sources is None:
            if not self._asks:
                return
            try:
                sources = await ask_sources(endpoint.pool, timeout_s=_ASK_TIMEOUT_S)
            except (UpstreamError, TimeoutError) as error:
                _LOG.debug("endpoint %s does not tell its KV events: %s", endpoint.name, error)
                return
        await self._follow(endpoint, sources)

    def statistics(self) -> KvEventStatistics:
        of_sources = [one.statistics() for followed in self._followed.values() for one, _ in followed.values()]
        return KvEventStatistics(
            num_sources=len(of_sources),
            num_batches=sum(one.num_batches for one in of_sources),
            num_replayed=sum(one.num_replayed for one in of_sources),
            num_unfilled_gaps=sum(one.num_unfilled_gaps for one in of_sources),
            num_restarts=sum(one.num_restarts for one in of_sources),
            num_unreadable=sum(one.num_unreadable for one in of_sources),
        )

    def __repr__(self) -> str:
        return f"KvEventMonitor(num_sources={sum(map(len, self._followed.values()))})"

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            if endpoint.is_healthy:
                await self.look(endpoint)
            await asyncio.sleep(_ASK_INTERVAL_S if endpoint.is_healthy else 1.0)

    async def _follow(self, endpoint: Endpoint, sources: tuple[EventSource, ...]) -> None:
        followed = self._followed.get(endpoint, {})
        if tuple(followed) == sources:
            return
        await self._end(endpoint)
        if sources and (context := self._open()) is not None:
            self._followed[endpoint] = {
                source: self._begin(endpoint, source, rank=rank, context=context) for rank, source in enumerate(sources)
            }
            addresses = ", ".join(source.publish for source in sources)
            _LOG.info("endpoint %s tells what it caches at %s", endpoint.name, addresses)

    async def _end(self, endpoint: Endpoint) -> None:
        tasks = [task for _, task in self._followed.pop(endpoint, {}).values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        first, *others = endpoint.holders
        self._index.clear(first)
        first.has_events = False
        for holder in others:
            self._index.remove_holder(holder)
        endpoint.holders = (first,)

    def _begin(
        self, endpoint: Endpoint, source: EventSource, *, rank: int, context: "zmq.asyncio.Context"
    ) -> "tuple[Subscription, asyncio.Task[None]]":
        from headrace.gateway.kv_events.subscription import Subscription

        if rank:
            endpoint.holders = (*endpoint.holders, self._index.add_holder(f"{endpoint.name} rank {rank}"))
        holder = endpoint.holders[rank]
        holder.has_events = True

        def note_block_size(block_size: int) -> None:
            if block_size <= _MAX_BLOCK_SIZE:
                endpoint.block_size = block_size

        sink = EventSink(self._index, self._hashers, holder, on_block_size=note_block_size)
        subscription = Subscription(source, sink)
        return subscription, self._owner.spawn(subscription.run(context), name=f"KV events at {source.publish}")

    def _open(self) -> "zmq.asyncio.Context | None":
        if self._context is None and not self._is_lame:
            try:
                import zmq.asyncio
            except ImportError:
                self._is_lame = True
                _LOG.warning("endpoints publish KV events, but pyzmq is missing; install headrace[kv-events]")
            else:
                self._context = zmq.asyncio.Context()
        return self._context
