"""What is found in the header fields of a message, found once for all messages whose heads are alike. Pure.

Theory. Clients and endpoints send the same fields again and again, and only their Content-Length differs (see `whole`).
What somebody finds out from the other fields alone is true of every such message.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Header fields in the order they came; names in lower case."""

FoundT = TypeVar("FoundT")


class HeadFacts:
    """`of(find)` is what `find` says of the fields, all but the Content-Length; each `find` is asked once. It must be a
    pure function that stands in a module, or a value that can be called, so that there are few of them."""

    __slots__ = ("_found", "headers")

    def __init__(self, headers: Headers) -> None:
        self.headers = [field for field in headers if field[0] != b"content-length"]
        """Shared; never to be changed."""
        self._found: dict[Callable[[Headers], object], Any] = {}

    def of(self, find: Callable[[Headers], FoundT]) -> FoundT:
        """What `find` makes of the fields."""
        try:
            found: FoundT = self._found[find]
        except KeyError:
            found = self._found[find] = find(self.headers)
        return found

    def changed(self, change: Callable[[Headers], Headers]) -> "HeadFacts":
        """The facts of the fields that `change` makes of these."""
        facts = self._found.get(change)
        if facts is None:
            facts = self._found[change] = HeadFacts(change(self.headers))
        assert isinstance(facts, HeadFacts)
        return facts

    def __repr__(self) -> str:
        return f"HeadFacts(num_fields={len(self.headers)}, num_found={len(self._found)})"


def first_fields(headers: Headers) -> dict[bytes, bytes]:
    """The first field of each name."""
    return dict(reversed(headers))
