"""Our copy of the objects that the API server holds, kept by lists and events. Pure.

Theory. A list gives all objects and a version; a watch from that version tells every later change in order, and
bookmarks move the version on while nothing changes. When the server has forgotten the version (410), only a new list
helps. The copy after any list and the events behind it is what a list at that moment would give. Of each object only
the endpoints that it means are kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic

from headrace.errors import SettingsError, UpstreamError
from headrace.gateway.discovery.kubernetes.objects import Bookmark, Change, ObjectT
from headrace.gateway.discovery.kubernetes.translate import Found, choose
from headrace.gateway.discovery.source import EndpointSpec

_MAX_OBJECTS = 20_000


@dataclass(slots=True)
class Replica(Generic[ObjectT]):
    """The objects of one kind by name, as endpoints."""

    translate: Callable[[ObjectT], tuple[Found, ...]]
    """Raises SettingsError for an object whose labels cannot be read; it is then left out."""
    version: str | None = None
    """Up to where everything is known; None: list first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why an object that should be an endpoint is none, by its name."""
    _found: dict[str, tuple[Found, ...]] = field(default_factory=dict)

    def replace(self, objects: Iterable[ObjectT], *, version: str) -> None:
        """A list says that there are these and no others."""
        self._found.clear()
        self.refused.clear()
        for one in objects:
            self._set(one)
        self.version = version

    def apply(self, event: Change[ObjectT] | Bookmark) -> None:
        """A watch says that something has changed."""
        if isinstance(event, Bookmark):
            self.version = event.version or self.version
            return
        if event.kind == "set":
            self._set(event.object)
        else:
            self._found.pop(event.object.metadata.key, None)
            self.refused.pop(event.object.metadata.key, None)
        self.version = event.object.metadata.resource_version or self.version

    def endpoints(self) -> tuple[EndpointSpec, ...]:
        """What the objects mean together."""
        return choose(one for found in self._found.values() for one in found)

    def __len__(self) -> int:
        return len(self._found)

    def _set(self, one: ObjectT) -> None:
        key = one.metadata.key
        if key not in self._found and len(self._found) >= _MAX_OBJECTS:
            raise UpstreamError(f"there are over {_MAX_OBJECTS} objects to follow; name fewer with a selector")
        self.refused.pop(key, None)
        try:
            self._found[key] = self.translate(one)
        except SettingsError as error:
            self._found[key] = ()
            self.refused[key] = error.message
