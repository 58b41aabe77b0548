"""What a fake API server holds: objects, a version that grows with every change, and the changes that it remembers.

Follows what the API promises of lists and watches: one order of changes for all, a watch from any remembered version,
410 for a forgotten one, and DELETED also for an object that a selector no longer matches. Knows nothing of HTTP.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]

_DELETED_AT = "2026-01-01T00:00:00Z"
_IN = re.compile(r"(?P<key>[\w./-]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")


class StoreError(Exception):
    """The answer is a Status with this code and reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A resource of the API."""

    group_version: str
    kind: str
    plural: str
    short: tuple[str, ...] = ()
    ends_at_once: bool = True
    """False: what is deleted stays, marked, until it has ended."""


KINDS = (
    Kind(group_version="v1", kind="Pod", plural="pods", short=("po",), ends_at_once=False),
    Kind(group_version="v1", kind="Service", plural="services", short=("svc",)),
    Kind(group_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects a list or a watch is about."""

    kind: Kind
    namespace: str | None = None
    label_selector: str = ""
    name: str | None = None

    def has(self, one: JsonObject | None) -> bool:
        if one is None or one["kind"] != self.kind.kind:
            return False
        meta = one["metadata"]
        is_there = self.namespace in {None, meta["namespace"]} and self.name in {None, meta["name"]}
        return is_there and matches(self.label_selector, meta.get("labels") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An object before and after; None where there was, or is, none."""

    version: int
    before: JsonObject | None
    after: JsonObject | None

    def event(self, selection: Selection) -> JsonObject | None:
        """What a watch of `selection` tells of it."""
        had, has = selection.has(self.before), selection.has(self.after)
        if has:
            return {"type": "MODIFIED" if had else "ADDED", "object": self.after}
        if had:
            assert self.before is not None
            return {"type": "DELETED", "object": _versioned(self.after or self.before, self.version)}
        return None


@dataclass(slots=True, kw_only=True)
class Store:
    """All objects by kind, namespace and name."""

    version: int = 100
    oldest: int = 100
    """A watch may begin here or later."""
    _objects: dict[tuple[str, str, str], JsonObject] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)

    def create(self, kind: Kind, one: JsonObject, *, namespace: str = "default") -> JsonObject:
        """Raises StoreError when there is one of that name."""
        one = copy.deepcopy(one)
        meta = one.setdefault("metadata", {})
        meta.setdefault("namespace", namespace)
        key = (kind.plural, meta["namespace"], meta["name"])
        if key in self._objects:
            raise StoreError(409, "AlreadyExists", f'{kind.plural} "{meta["name"]}" already exists')
        meta["uid"] = f"uid-{self.version + 1}"
        one |= {"apiVersion": kind.group_version, "kind": kind.kind}
        return self._put(key, one)

    def get(self, kind: Kind, name: str, *, namespace: str = "default") -> JsonObject:
        """Raises StoreError when there is none."""
        try:
            return self._objects[kind.plural, namespace, name]
        except KeyError:
            raise StoreError(404, "NotFound", f'{kind.plural} "{name}" not found') from None

    def patch(self, kind: Kind, name: str, patch: JsonObject, *, namespace: str = "default") -> JsonObject:
        """Merge `patch` into the object, as JSON merge patches do. Raises StoreError."""
        one = self.get(kind, name, namespace=namespace)
        return self._put((kind.plural, namespace, name), _merge(one, patch))

    def delete(
        self, kind: Kind, name: str, *, namespace: str = "default", grace_period_s: int | None = None
    ) -> JsonObject:
        """Remove it; a pod is only marked, unless it gets no grace. Raises StoreError."""
        one = self.get(kind, name, namespace=namespace)
        if kind.ends_at_once or grace_period_s == 0:
            return self._remove((kind.plural, namespace, name))
        seconds = 30 if grace_period_s is None else grace_period_s
        marked = {"metadata": {"deletionTimestamp": _DELETED_AT, "deletionGracePeriodSeconds": seconds}}
        return self._put((kind.plural, namespace, name), _merge(one, marked))

    def compact(self) -> None:
        """Forget all changes so far."""
        self._changes.clear()
        self.oldest = self.version

    def select(self, selection: Selection) -> list[JsonObject]:
        """The objects in the order of their names."""
        return [one for _, one in sorted(self._objects.items()) if selection.has(one)]

    def changes_after(self, version: int) -> list[Change]:
        """Raises StoreError (410) for a version that is forgotten, and 504 for one that is yet to come."""
        if version < self.oldest:
            raise StoreError(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        if version > self.version:
            raise StoreError(504, "Timeout", f"Too large resource version: {version}, current: {self.version}")
        return [change for change in self._changes if change.version > version]

    def _put(self, key: tuple[str, str, str], one: JsonObject) -> JsonObject:
        before = self._objects.get(key)
        self.version += 1
        after = _versioned(one, self.version)
        self._objects[key] = after
        self._changes.append(Change(version=self.version, before=before, after=after))
        return after

    def _remove(self, key: tuple[str, str, str]) -> JsonObject:
        before = self._objects.pop(key)
        self.version += 1
        self._changes.append(Change(version=self.version, before=before, after=None))
        return _versioned(before, self.version)


def matches(selector: str, labels: dict[str, str]) -> bool:
    """Whether a label selector takes `labels`: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a` and `!a`, with commas
    between. Raises StoreError (400) for what is none."""
    return all(_requirement(part, labels) for part in _split(selector))


def _split(selector: str) -> Iterator[str]:
    for part in re.split(r",(?![^(]*\))", selector):
        if part.strip():
            yield part.strip()


def _requirement(text: str, labels: dict[str, str]) -> bool:
    if found := _IN.fullmatch(text):
        values = {value.strip() for value in found["values"].split(",")}
        return (labels.get(found["key"]) in values) == (found["operator"] == "in")
    for operator in ("!=", "==", "="):
        key, separator, value = text.partition(operator)
        if separator:
            return (labels.get(key.strip()) == value.strip()) == (operator != "!=")
    if not re.fullmatch(r"!?[\w./-]+", text):
        raise StoreError(400, "BadRequest", f"unable to parse requirement: {text!r}")
    return (text.lstrip("!") in labels) == (not text.startswith("!"))


def _versioned(one: JsonObject, version: int) -> JsonObject:
    return one | {"metadata": one["metadata"] | {"resourceVersion": str(version)}}


def _merge(one: JsonObject, patch: JsonObject) -> JsonObject:
    merged = dict(one)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
