"""Reads of a stream of events that can be handed on unseen: whole chunks of whole events that tell no usage. Pure.

Nearly every token of every stream is such a read, so this is also compiled.
"""

from typing import Protocol

from headrace._native import compiled
from headrace.gateway.http.chunks import bounds_of_chunks

_MARK = b'"usage"'


def in_python(data: bytes) -> int:
    """How many events are in `data`, if these are whole chunks of whole events without usage; else 0.

    An event may not begin with an empty line, so that events are counted as in their text without the chunks.
    """
    bounds = bounds_of_chunks(data) or ()
    for begin, end in bounds:
        if not data.endswith(b"\n\n", begin, end) or data.startswith(b"\n", begin) or data.find(_MARK, begin, end) >= 0:
            return 0
    return sum([data.count(b"\n\n", begin, end) for begin, end in bounds])


class Client(Protocol):
    """What of a client's transport is used."""

    def is_closing(self) -> bool: ...

    def write(self, data: bytes, /) -> None: ...


class EventPipe:
    """A client to whom such reads may go as they are, past all who would look into them."""

    __slots__ = ("num_events", "transport")

    def __init__(self, transport: Client) -> None:
        self.transport = transport
        self.num_events = 0
        """That went this way."""


num_plain_events = compiled.num_plain_events if compiled is not None else in_python
"""`in_python`, or its equal in C."""
