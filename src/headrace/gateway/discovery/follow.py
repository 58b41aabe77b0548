"""Follows all sources of endpoints, and hands on the set that they make together."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from headrace.aio.tasks import TaskOwner
from headrace.gateway.discovery.merge import MAX_ENDPOINTS, Merge
from headrace.gateway.discovery.source import EndpointSpec, Source, SourceStatistics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ADMIN_API = "admin API"
"""The origin of endpoints that were added at run time."""

_LOG = logging.getLogger(__name__)


class Discovery:
    """`on_change` is called in the loop with the complete set, after the first word of each source and every change.

    Before all sources stands the admin API, which tells its endpoints by `tell`.
    """

    def __init__(self, sources: Sequence[Source], *, on_change: Callable[[tuple[EndpointSpec, ...]], None]) -> None:
        self._sources = tuple(sources)
        self._merge = Merge([ADMIN_API, *(source.name for source in sources)])
        self._on_change = on_change
        self._silent = {source.name for source in sources}
        self._all_told = asyncio.Event()
        self._owner = TaskOwner("discovery")

    async def start(self, *, timeout_s: float) -> None:
        """Begin to follow; returns when every source has told its endpoints, or after `timeout_s` without the others,
        which join as soon as they do."""
        for source in self._sources:
            self._owner.spawn(self._follow(source), name=f"endpoints of {source.name}")
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_told.wait()
        except TimeoutError:
            for name in sorted(self._silent):
                _LOG.warning("%s names no endpoints yet; going on without", name)

    async def aclose(self) -> None:
        """Follow nothing more. Idempotent."""
        await self._owner.aclose()

    def tell(self, name: str, specs: Sequence[EndpointSpec]) -> None:
        """The complete set of one source, as it is now."""
        wanted = self._merge.tell(name, specs)
        if self._merge.num_left_out:
            _LOG.error("%d endpoints over the limit of %d are left out", self._merge.num_left_out, MAX_ENDPOINTS)
        self._on_change(wanted)
        self._silent.discard(name)
        if not self._silent:
            self._all_told.set()

    def statistics(self) -> dict[str, SourceStatistics]:
        """How each source does, by name."""
        return {source.name: source.statistics() for source in self._sources}

    @property
    def num_stale(self) -> int:
        """Sources whose last word may be old."""
        return sum(one.trouble is not None for one in self.statistics().values())

    async def _follow(self, source: Source) -> None:
        async with aclosing(cast("AsyncGenerator[tuple[EndpointSpec, ...], None]", source.watch())) as sets:
            async for specs in sets:
                self.tell(source.name, specs)

    def __repr__(self) -> str:
        return f"Discovery({self._merge!r})"
