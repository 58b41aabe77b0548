"""Which sources there are, by the scheme of an entry's URL: a new one is one line here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SettingsError
from headrace.gateway.discovery.dns import DnsSource, parse_name
from headrace.gateway.discovery.entry import EndpointEntry, parse_entry
from headrace.gateway.discovery.file import SETTINGS_FILE, FileSource, specs_of
from headrace.gateway.discovery.kubernetes.target import parse_target
from headrace.gateway.discovery.source import Source
from headrace.gateway.discovery.static import StaticSource

_ORIGIN = "settings"
_WHERE = "endpoint"
_NAMED = ("http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finder:
    """A kind of source that finds endpoints: how its URL is checked, and how one is made. Both raise SettingsError."""

    check: Callable[[str], object]
    make: Callable[[EndpointEntry, float], Source]
    """From the entry, and the seconds between two looks for what must be asked again and again."""


def _new_dns(entry: EndpointEntry, interval_s: float) -> Source:
    return DnsSource(entry, interval_s=interval_s, where=_WHERE)


def _new_kubernetes(entry: EndpointEntry, interval_s: float) -> Source:
    from headrace.gateway.discovery.kubernetes.source import kubernetes_source  # needs the extra `kubernetes`

    del interval_s  # the cluster tells of changes
    return kubernetes_source(entry, where=_WHERE)


FINDERS: Mapping[str, Finder] = {
    "dns": Finder(check=parse_name, make=_new_dns),
    "kube": Finder(check=parse_target, make=_new_kubernetes),
}


def parse_entries(endpoint: Sequence[str]) -> list[EndpointEntry]:
    """The entries of the setting `endpoint`. Raises SettingsError for any that is wrong, or given twice."""
    entries = [parse_entry(text, where=_WHERE) for text in endpoint]
    specs_of([entry for entry in entries if entry.scheme not in FINDERS], origin=_ORIGIN, where=_WHERE)
    for entry in entries:
        if entry.scheme in FINDERS:
            FINDERS[entry.scheme].check(entry.url)
    finders = [entry.url for entry in entries if entry.scheme in FINDERS]
    for url in finders:
        if finders.count(url) > 1:
            raise SettingsError(f"endpoint {url!r} is given twice; give each once", param="endpoint")
    return entries


def sources_of(
    endpoint: Sequence[str],
    *,
    endpoints_file: str | None,
    settings_file: str | None,
    interval_s: float,
) -> list[Source]:
    """The sources of a gateway, in the order of their precedence. With `settings_file`, `endpoint` stands in that file
    and is followed there. Raises SettingsError."""
    entries = parse_entries(endpoint)
    sources: list[Source] = []
    if settings_file is not None:
        sources.append(FileSource(Path(settings_file), interval_s=interval_s, keys=SETTINGS_FILE))
    else:
        named = [entry for entry in entries if entry.scheme in _NAMED]
        sources.append(StaticSource(specs_of(named, origin=_ORIGIN, where=_WHERE), name=_ORIGIN))
    if endpoints_file is not None:
        sources.append(FileSource(Path(endpoints_file), interval_s=interval_s))
    finding = [entry for entry in entries if entry.scheme in FINDERS]
    return [*sources, *(FINDERS[entry.scheme].make(entry, interval_s) for entry in finding)]
