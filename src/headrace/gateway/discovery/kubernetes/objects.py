"""What is read of the API server's JSON: pods, EndpointSlices, their lists, and the events of a watch. Pure.

Go writes an empty list or map as `null` or leaves it out, so each may be None.
"""

from typing import Generic, Literal, TypeVar

import msgspec

from headrace.errors import UpstreamProtocolError
from headrace.gateway.unreadable import UNREADABLE


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields are named as the API names them, in camel case."""


class OwnerRef(_Object, frozen=True, kw_only=True):
    """The object that something speaks of."""

    kind: str = ""
    name: str = ""


class ObjectMeta(_Object, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str = ""
    deletion_timestamp: str | None = None

    @property
    def key(self) -> str:
        """What names an object among those of its kind."""
        return f"{self.namespace}/{self.name}"

    def mark(self, *names: str) -> str | None:
        """The first of these labels that it has; annotations come after all labels."""
        for marks in (self.labels or {}, self.annotations or {}):
            for name in names:
                if value := marks.get(name):
                    return value
        return None


class ContainerPort(_Object, frozen=True, kw_only=True):
    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(_Object, frozen=True, kw_only=True):
    ports: list[ContainerPort] | None = None


class PodSpec(_Object, frozen=True, kw_only=True):
    containers: list[Container] | None = None


class Condition(_Object, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None


class Pod(_Object, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class SliceConditions(_Object, frozen=True, kw_only=True):
    """None where the API server does not know."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(_Object, frozen=True, kw_only=True):
    addresses: list[str] | None = None
    conditions: SliceConditions | None = None
    target_ref: OwnerRef | None = None


class SlicePort(_Object, frozen=True, kw_only=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(_Object, frozen=True, kw_only=True):
    metadata: ObjectMeta
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


ObjectT = TypeVar("ObjectT", bound=Pod | EndpointSlice)


class ListMeta(_Object, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class Page(_Object, Generic[ObjectT], frozen=True, kw_only=True):
    """One page of a list."""

    metadata: ListMeta
    items: list[ObjectT] | None = None


class Status(_Object, frozen=True, kw_only=True):
    """Why the API server does not do what it was asked."""

    code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def is_expired(self) -> bool:
        """Whether the version asked for is forgotten, and everything must be listed anew."""
        return self.code == 410 or self.reason in {"Expired", "Gone"}


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Bookmark(_Object, frozen=True, kw_only=True):
    metadata: ObjectMeta


class Change(msgspec.Struct, Generic[ObjectT], frozen=True):
    """An object is now so, or is gone."""

    kind: Literal["set", "gone"]
    object: ObjectT


class Bookmark(msgspec.Struct, frozen=True):
    """All up to this version has been told."""

    version: str


class WatchError(msgspec.Struct, frozen=True):
    """The watch ends here."""

    status: Status


class Decoder(Generic[ObjectT]):
    """Reads the lists and events of one kind of object. Raises UpstreamProtocolError for what is none."""

    def __init__(self, object_type: type[ObjectT]) -> None:
        page_type: type[Page[ObjectT]] = Page[object_type]  # type: ignore[valid-type]  # a type made at run time
        self._page = msgspec.json.Decoder(page_type)
        self._object: msgspec.json.Decoder[ObjectT] = msgspec.json.Decoder(object_type)

    def page(self, body: bytes) -> Page[ObjectT]:
        try:
            return self._page.decode(body)
        except UNREADABLE as error:
            raise UpstreamProtocolError(f"the API server's list cannot be read: {error}") from error

    def event(self, line: bytes) -> Change[ObjectT] | Bookmark | WatchError | None:
        """None for a kind of event that is not known, which the API may gain."""
        try:
            raw = _EVENT.decode(line)
            match raw.type:
                case "ADDED" | "MODIFIED":
                    return Change("set", self._object.decode(raw.object))
                case "DELETED":
                    return Change("gone", self._object.decode(raw.object))
                case "BOOKMARK":
                    return Bookmark(_BOOKMARK.decode(raw.object).metadata.resource_version)
                case "ERROR":
                    return WatchError(_STATUS.decode(raw.object))
        except UNREADABLE as error:
            raise UpstreamProtocolError(f"an event of the API server cannot be read: {error}") from error
        return None


def read_status(body: bytes) -> Status:
    """The Status object in the body of an error; an empty one where there is none."""
    try:
        return _STATUS.decode(body)
    except UNREADABLE:
        return Status()


_EVENT = msgspec.json.Decoder(_RawEvent)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_STATUS = msgspec.json.Decoder(Status)
