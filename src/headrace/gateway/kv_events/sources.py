"""Where an endpoint publishes its KV events: as the operator says, or as the endpoint answers `GET /kv_event_sources`.
Pure but for the asking."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from headrace.errors import SettingsError, UpstreamError, UpstreamProtocolError
from headrace.gateway.unreadable import UNREADABLE
from headrace.gateway.upstream.address import parse_address
from headrace.gateway.upstream.fetch import fetch
from headrace.gateway.upstream.pool import UpstreamPool

_ANYWHERE = frozenset({"*", "0.0.0.0", "::", "[::]", ""})  # noqa: S104 - read, not bound
_MAX_RANKS = 64


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZMQ addresses to connect to."""

    publish: str
    replay: str | None = None
    topic: str = ""


class _Told(msgspec.Struct, frozen=True):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None
    publisher: str | None = None
    enable_kv_cache_events: bool = True


_TOLD = msgspec.json.Decoder(dict[str, _Told])


async def ask_sources(pool: UpstreamPool, *, timeout_s: float) -> tuple[EventSource, ...]:
    """The sources of each data-parallel rank, in order; none where the endpoint has none or knows of no such question.

    Raises an UpstreamError, or TimeoutError.
    """
    answer = await fetch(pool, "/kv_event_sources", timeout_s=timeout_s)
    if answer.status >= 500:
        raise UpstreamProtocolError(f"/kv_event_sources answered {answer.status}")
    return read_sources(answer.body, host=pool.address.host) if answer.status == 200 else ()


def read_sources(body: bytes, *, host: str) -> tuple[EventSource, ...]:
    """What an endpoint on `host` answered. Raises UpstreamProtocolError."""
    try:
        told = _TOLD.decode(body)
        ranks = sorted(told, key=int)[:_MAX_RANKS]
    except (*UNREADABLE, ValueError) as error:
        raise UpstreamProtocolError(f"/kv_event_sources is not a map of ranks: {error}") from error
    sources = [_source_of(told[rank], host=host) for rank in ranks]
    return tuple(source for source in sources if source is not None)


def _source_of(told: _Told, *, host: str) -> EventSource | None:
    is_published = told.enable_kv_cache_events and told.publisher in {None, "zmq"}
    if not is_published or told.endpoint is None:
        return None
    replay = reachable(told.replay_endpoint, host=host) if told.replay_endpoint else None
    return EventSource(reachable(told.endpoint, host=host), replay, told.topic or "")


def reachable(address: str, *, host: str) -> str:
    """What `address`, which an engine on `host` has bound, is for others.

    Raises UpstreamError for one that is not TCP or IPC, or that has no port.
    """
    if address.startswith("ipc://"):
        return address
    bound, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not port.isdigit() or port == "0":
        raise UpstreamError(f"KV events at {address!r} cannot be reached; the engine should publish on a TCP port")
    if bound in _ANYWHERE:
        bound = f"[{host}]" if ":" in host else host
    return f"tcp://{bound}:{port}"


def parse_sources(entries: tuple[str, ...]) -> Mapping[str, tuple[EventSource, ...]]:
    """The setting's entries, `ENDPOINT=PUBLISH[,REPLAY]`, by the endpoint's URL; several of one endpoint are its
    data-parallel ranks. Raises SettingsError."""
    sources: dict[str, tuple[EventSource, ...]] = {}
    for entry in entries:
        url, separator, addresses = entry.partition("=")
        source = parse_source(addresses) if separator else None
        if source is None:
            message = f"kv_event_source {entry!r} is not ENDPOINT=tcp://HOST:PORT[,tcp://HOST:PORT]"
            raise SettingsError(message, param="kv_event_source")
        url = parse_address(url, param="kv_event_source").url
        sources[url] = (*sources.get(url, ()), source)
    return sources


def parse_source(addresses: str) -> EventSource | None:
    """The source of `PUBLISH[,REPLAY]`; None for anything else."""
    publish, _, replay = addresses.partition(",")
    if not _is_address(publish) or (replay and not _is_address(replay)):
        return None
    return EventSource(publish, replay or None)


def _is_address(text: str) -> bool:
    if text.startswith("ipc://"):
        return True
    try:
        parts = urlsplit(text)
        return parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        return False
