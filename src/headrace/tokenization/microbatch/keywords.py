"""Keyword arguments as something that can be compared: two calls may share a batch only if every keyword is equal."""

from collections.abc import Hashable, Mapping


class Keywords:
    """Keyword arguments that compare equal when every name, value and type of value is equal.

    A value that cannot be compared safely (an array, an object of one's own) equals only itself.
    """

    __slots__ = ("_hash", "_key", "values")

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = dict(values)
        self._key = frozenset((name, _frozen(value)) for name, value in values.items())
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keywords) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Keywords({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"


def _frozen(value: object) -> Hashable:
    """The type goes with the value, because True == 1 and 1 == 1.0 mean different things to a tokenizer."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return type(value), value
    if type(value) in (list, tuple, set, frozenset):
        items = [_frozen(item) for item in value]  # type: ignore[attr-defined]
        return type(value), frozenset(items) if isinstance(value, set | frozenset) else tuple(items)
    if type(value) is dict:
        return dict, tuple((_frozen(key), _frozen(item)) for key, item in value.items())
    return _Same(value)


class _Same:
    """Equal to what wraps the same object, which it keeps alive so that its identity is not reused."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
