"""Where remote tokenizers are found: the interface that a gateway fills, and the URLs made of what it gives. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Protocol
from urllib.parse import urlsplit

from headrace.errors import SettingsError
from headrace.tokenization.remote.settings import RemoteEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEndpoint:
    """An endpoint that is ready to tokenize for a model."""

    address: str
    """A URL such as `https://engine-1:8443/prefix`, or a bare host or IP address for the endpoint template."""

    engine: RemoteEngine | None = None
    """Whose bodies it speaks; None: what the settings say."""

    num_in_flight: int = 0
    """Requests of all kinds that it works on, as far as discovery knows; tokenizing goes where there are fewest."""


class EndpointSource(Protocol):
    """Which endpoints serve which model, now."""

    def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
        """Those that are ready to tokenize for `model`, in any order; none for a model nobody serves.

        Called for each request, so it answers from memory.
        """
        ...


class StaticEndpoints:
    """An `EndpointSource` that never changes."""

    def __init__(self, by_model: Mapping[str, Sequence[str]]) -> None:
        self._by_model = {
            model: tuple(RemoteEndpoint(address=address) for address in addresses)
            for model, addresses in by_model.items()
        }

    def endpoints(self, model: str) -> Sequence[RemoteEndpoint]:
        """See `EndpointSource`."""
        return self._by_model.get(model, ())

    def __repr__(self) -> str:
        return f"StaticEndpoints(num_models={len(self._by_model)})"


def base_url(address: str, *, template: str) -> str:
    """The URL of `address` without a slash, or the `/v1` of OpenAI's routes, at its end.

    A bare host takes the place of `%s` in `template`; an IPv6 address gets its brackets. Raises SettingsError.
    """
    url = address if "://" in address else template.replace("%s", _host(address))
    expected = "give http[s]://host[:port][/prefix] or a bare host"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"the endpoint {address!r} gives no URL ({error}); {expected}", param="endpoint") from error
    is_plain = not (parts.username or parts.query or parts.fragment) and url.isascii() and url.isprintable()
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or not is_plain or " " in url:
        raise SettingsError(
            f"the endpoint {address!r} gives {url!r}, which is no endpoint; {expected}", param="endpoint"
        )
    return url.rstrip("/").removesuffix("/v1")


def _host(address: str) -> str:
    try:
        return f"[{IPv6Address(address.strip('[]'))}]"
    except ValueError:
        return address
