"""The frame of chunks (RFC 9112 section 7.1), for reads that are nothing but whole ones. Pure.

Strict: what is written in any but the plainest way is left to the parser.
"""

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_NUM_END_BYTES = 2


def bounds_of_chunks(data: bytes) -> list[tuple[int, int]] | None:
    """Where what each chunk in `data` holds begins and ends; None unless these are whole chunks, without extensions,
    none of them the last one of a body."""
    position, num_bytes = 0, len(data)
    bounds: list[tuple[int, int]] = []
    while position < num_bytes:
        size = _SIZE.match(data, position)
        if size is None:
            return None
        begin = size.end()
        end = begin + int(size[1], 16)
        position = end + _NUM_END_BYTES
        if end == begin or data[end:position] != b"\r\n":
            return None
        bounds.append((begin, end))
    return bounds


def content_of_chunks(data: bytes) -> bytes | None:
    """What the chunks in `data` hold together; None where they are no whole chunks, and for no chunk at all."""
    bounds = bounds_of_chunks(data)
    return b"".join([data[begin:end] for begin, end in bounds]) if bounds else None
