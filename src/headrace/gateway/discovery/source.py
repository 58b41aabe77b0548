"""What every source of endpoints offers."""

from typing import Protocol

from headrace.gateway.upstream.address import Address


class Source(Protocol):
    """Knows the endpoints that there should be."""

    def addresses(self) -> tuple[Address, ...]:
        """The endpoints as known now, each once, in a stable order."""
