"""Joins what several sources say into one set in which every endpoint has one owner. Pure."""

from collections.abc import Sequence

from headrace.gateway.discovery.source import EndpointSpec

MAX_ENDPOINTS = 4096


class Merge:
    """The sources stand in order; of those that name an endpoint the first owns it: what it says of it counts. When the
    owner drops it, the next one that names it takes it over."""

    def __init__(self, names: Sequence[str]) -> None:
        self._told: dict[str, tuple[EndpointSpec, ...]] = dict.fromkeys(names, ())
        self.num_left_out = 0
        """Endpoints beyond `MAX_ENDPOINTS`."""

    def tell(self, name: str, specs: Sequence[EndpointSpec]) -> tuple[EndpointSpec, ...]:
        """What one source says now; the set that follows, each endpoint once, in a stable order."""
        self._told[name] = tuple(specs)
        owned: dict[str, EndpointSpec] = {}
        for told in self._told.values():
            for spec in told:
                owned.setdefault(spec.url, spec)
        self.num_left_out = max(0, len(owned) - MAX_ENDPOINTS)
        return tuple(owned.values())[:MAX_ENDPOINTS]

    def __repr__(self) -> str:
        return f"Merge({', '.join(f'{name}: {len(told)}' for name, told in self._told.items())})"
