"""Messages that come whole, in one read, behind a head like one before. Pure.

Theory. A client sends the same fields with every request, and an endpoint with every answer; only the length differs.
Such a head need not be parsed again: what was understood of the last one like it is true of it.

Rule: only a head that llhttp has taken is remembered, and one is like it only if every byte is the same but the digits
of its one Content-Length. What could be read in two ways was refused by llhttp, or is in the bytes that must be equal.
"""

import re
from typing import NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"


class Whole(NamedTuple):
    """One message: all of its head but the digits of its length, these digits, and where its body begins."""

    head: bytes
    digits: bytes
    body_at: int


def whole_message(data: bytes) -> Whole | None:
    """`data` taken apart if it is one message with a Content-Length, no less and no more."""
    end = data.find(_END)
    length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    if length is None:
        return None
    body_at = end + len(_END)
    begin, behind = length.span(1)
    if body_at + int(length[1]) != len(data):
        return None
    return Whole(data[:begin] + data[behind:body_at], length[1], body_at)
