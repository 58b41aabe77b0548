"""The endpoints that the operator listed. They never change."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from headrace.gateway.discovery.source import EndpointSpec, SourceStatistics


class StaticSource:
    """A fixed list."""

    def __init__(self, specs: Sequence[EndpointSpec], *, name: str) -> None:
        self.name = name
        self._specs = tuple(specs)

    async def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        yield self._specs
        await asyncio.Event().wait()

    def statistics(self) -> SourceStatistics:
        return SourceStatistics(num_endpoints=len(self._specs))

    def __repr__(self) -> str:
        return f"StaticSource({self.name}, num_endpoints={len(self._specs)})"
