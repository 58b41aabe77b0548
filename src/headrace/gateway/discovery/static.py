"""The endpoints that the operator listed. They never change."""

from headrace.errors import SettingsError
from headrace.gateway.upstream.address import Address, parse_address


class StaticSource:
    """A fixed list of endpoint URLs. Raises SettingsError for one that is no URL, or that stands there twice."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._addresses = tuple(parse_address(url) for url in urls)
        seen: set[str] = set()
        for address in self._addresses:
            if address.url in seen:
                raise SettingsError(f"endpoint {address.url!r} is given twice; give each once", param="endpoint")
            seen.add(address.url)

    def addresses(self) -> tuple[Address, ...]:
        return self._addresses

    def __repr__(self) -> str:
        return f"StaticSource(num_endpoints={len(self._addresses)})"
