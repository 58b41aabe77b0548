"""Endpoints in a YAML file, which is read again whenever it changes. What cannot be read changes nothing, loudly.

The file is a list of entries, or a mapping with that list under `endpoints`; in a settings file it stands under
`gateway: {endpoint: [...]}`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import yaml

from headrace.aio.bridge import make_async
from headrace.errors import SettingsError
from headrace.gateway.discovery.entry import EndpointEntry, parse_entry, spec_of
from headrace.gateway.discovery.source import EndpointSpec, SourceStatistics
from headrace.yaml_text import read_yaml

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 4 << 20

_LIST_FILE = ("endpoints",)
SETTINGS_FILE = ("gateway", "endpoint")
"""Where the list stands in a settings file."""


class FileSource:
    """The first read, at construction, raises SettingsError; later ones keep the last good list."""

    def __init__(self, path: Path, *, interval_s: float, keys: Sequence[str] = _LIST_FILE) -> None:
        self.name = str(path)
        self._path = path
        self._interval_s = interval_s
        self._keys = tuple(keys)
        self._content: bytes | None = path_bytes(path)
        self._specs, self._finders = self._read(self._content)
        self._trouble: str | None = None
        self._num_troubles = 0

    async def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        """See `Source`."""
        yield self._specs
        while True:
            await asyncio.sleep(self._interval_s)
            if await self.look():
                yield self._specs

    async def look(self) -> bool:
        """Read the file if its content has changed since the last look; whether its endpoints have."""
        try:
            content = await make_async(path_bytes)(self._path)
        except SettingsError as error:
            self._content = None
            return self._note_trouble(error.message)
        if content == self._content:
            return False
        self._content = content
        try:
            specs, finders = await make_async(self._read)(content)
        except SettingsError as error:
            return self._note_trouble(error.message)
        has_changed = specs != self._specs
        self._specs = specs
        if finders != self._finders:
            self._note_trouble(f"{self._path}: what finds endpoints (dns://, kube://) changes only at a restart")
            return has_changed
        self._trouble = None
        _LOG.info("read %d endpoints of %s", len(specs), self._path)
        return has_changed

    def statistics(self) -> SourceStatistics:
        return SourceStatistics(num_endpoints=len(self._specs), trouble=self._trouble, num_troubles=self._num_troubles)

    def _read(self, content: bytes) -> tuple[tuple[EndpointSpec, ...], tuple[EndpointEntry, ...]]:
        """The endpoints, and the entries that other sources are made of."""
        entries = [parse_entry(one, where=self.name) for one in _list_in(content, keys=self._keys, where=self.name)]
        named = [entry for entry in entries if entry.scheme in {"http", "https"}]
        finders = tuple(entry for entry in entries if entry not in named)
        if finders and self._keys != SETTINGS_FILE:
            message = f"{self.name}: {finders[0].url!r} is no http:// or https:// URL; give it as --endpoint"
            raise SettingsError(message, param="endpoints_file")
        return specs_of(named, origin=self.name, where=self.name), finders

    def _note_trouble(self, why: str) -> bool:
        if why != self._trouble:
            _LOG.error("the endpoints stay as they were: %s", why)
            self._num_troubles += 1
        self._trouble = why
        return False

    def __repr__(self) -> str:
        return f"FileSource({self._path}, num_endpoints={len(self._specs)}, {self._trouble or 'well'})"


def specs_of(entries: Sequence[EndpointEntry], *, origin: str, where: str) -> tuple[EndpointSpec, ...]:
    """The endpoints of entries with http URLs. Raises SettingsError for one that is no URL, or stands there twice."""
    specs: dict[str, EndpointSpec] = {}
    for entry in entries:
        spec = spec_of(entry, origin=origin, where=where)
        if spec.url in specs:
            raise SettingsError(f"{where}: endpoint {spec.url!r} is given twice; give each once", param="endpoint")
        specs[spec.url] = spec
    return tuple(specs.values())


def path_bytes(path: Path) -> bytes:
    """The file's content, bounded. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"endpoints_file {path}: cannot be read: {error}", param="endpoints_file") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"endpoints_file {path}: has more than {_MAX_BYTES} bytes", param="endpoints_file")
    return content


def _list_in(content: bytes, *, keys: Sequence[str], where: str) -> Sequence[object]:
    """The list of entries. A file without one is broken: half a file must not take all endpoints away."""
    try:
        value: object = read_yaml(content.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{where}: cannot be read: {error}", param="endpoints_file") from error
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        place = ".".join(keys)
        raise SettingsError(
            f"{where}: there is no list of endpoints (at the top, or as {place})", param="endpoints_file"
        )
    return value
