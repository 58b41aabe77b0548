"""One endpoint as an operator writes it, in a flag, a settings file, a file of endpoints or a request of the admin API:
a URL, or a mapping with `url` and what else is known. Pure."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec

from headrace.errors import SettingsError
from headrace.gateway.discovery.source import EndpointSpec
from headrace.gateway.kv_events.sources import EventSource, parse_source
from headrace.gateway.upstream.address import Address, parse_address
from headrace.gateway.upstream.key import can_be_sent

_MAX_URL_CHARACTERS = 2048

_Weight: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1000)]
_Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class EndpointEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The mapping."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_URL_CHARACTERS)]
    """`http[s]://HOST:PORT`, or that of a source that finds endpoints, such as `dns://NAME:PORT`."""
    weight: _Weight | None = None
    api_key: str | None = None
    engine: _Word | None = None
    models: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=256)] = ()
    kv_events: _Word | None = None
    """`tcp://HOST:PORT`, or two of these with a comma between, the second for replays."""

    @property
    def scheme(self) -> str:
        """What stands before `://` in the URL."""
        return self.url.partition("://")[0].lower()

    def __repr__(self) -> str:
        return f"EndpointEntry({self.url!r})"  # never the key


def parse_entry(value: object, *, where: str) -> EndpointEntry:
    """The entry of a URL, of a mapping, or of a mapping written as JSON text, which is what the command line makes of
    one. `where` names the setting or file in errors. Raises SettingsError, which never shows a key."""
    content = _from_json(value, where=where) if isinstance(value, str) and value.startswith("{") else value
    if isinstance(content, str):
        content = {"url": content}
    if not isinstance(content, Mapping):
        raise SettingsError(f"{where}: {content!r} is neither a URL nor a mapping with `url`", param="endpoint")
    try:
        entry = msgspec.convert(content, EndpointEntry)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: endpoint {content.get('url')!r}: {error}", param="endpoint") from error
    if entry.api_key is not None and not can_be_sent(entry.api_key):
        message = f"{where}: endpoint {entry.url!r}: api_key has characters that no HTTP header can carry"
        raise SettingsError(message, param="endpoint")
    event_source_of(entry, where=where)
    return entry


def spec_of(entry: EndpointEntry, address: Address | None = None, *, origin: str, where: str) -> EndpointSpec:
    """The endpoint of an entry; `address` is what a source found for one whose URL names no endpoint itself.

    Raises SettingsError."""
    return EndpointSpec(
        address if address is not None else parse_address(entry.url, param=where),
        weight=entry.weight if entry.weight is not None else 1.0,
        api_key=entry.api_key,
        engine=entry.engine,
        models=entry.models,
        kv_events=event_source_of(entry, where=where),
        origin=origin,
    )


def event_source_of(entry: EndpointEntry, *, where: str) -> EventSource | None:
    """Where the entry says that KV events are. Raises SettingsError."""
    if entry.kv_events is None:
        return None
    source = parse_source(entry.kv_events)
    if source is None:
        message = f"{where}: endpoint {entry.url!r}: kv_events {entry.kv_events!r} is not tcp://HOST:PORT[,tcp://...]"
        raise SettingsError(message, param="endpoint")
    return source


def _from_json(text: str, *, where: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{where}: an endpoint's mapping is not JSON: {error}", param="endpoint") from error
