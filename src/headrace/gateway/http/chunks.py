"""The frame of chunks (RFC 9112 section 7.1), for reads that are nothing but whole ones. Pure.

Strict: what is written in any but the plainest way is left to the parser.
"""

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_NUM_END_BYTES = 2


def content_of_chunks(data: bytes) -> bytes | None:
    """What the chunks in `data` hold; None unless it is one or more whole chunks, without extensions, none of them the
    last one of a body."""
    position, num_bytes = 0, len(data)
    parts: list[bytes] = []
    while position < num_bytes:
        size = _SIZE.match(data, position)
        if size is None:
            return None
        begin = size.end()
        end = begin + int(size[1], 16)
        position = end + _NUM_END_BYTES
        if end == begin or data[end:position] != b"\r\n":
            return None
        parts.append(data[begin:end])
    return parts[0] if len(parts) == 1 else b"".join(parts) or None
