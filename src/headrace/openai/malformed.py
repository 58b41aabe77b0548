"""Says why a body is no JSON, in words that its sender can act on. Pure."""

import re

import msgspec

_MAX_SEARCHED_BYTES = 1 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ESCAPE = re.compile(rb"\\(?:(u[dD][89abAB]..)(\\u[dD][c-fC-F]..)?|(u[dD][c-fC-F]..)|.)", re.DOTALL)
"""One escape of a JSON string: half of a pair and its other half, an other half alone, or anything else."""


def why_malformed(error: msgspec.DecodeError | UnicodeDecodeError, body: bytes) -> str:
    """What is wrong with `body`, which reading it failed with `error`."""
    for mark, name in _COMPRESSED.items():
        if body.startswith(mark):
            return f"it is compressed ({name}); send it uncompressed"
    if body.startswith(_UTF16_MARKS):
        return "it is UTF-16; send UTF-8"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not valid UTF-8: {error.reason} at byte {error.start}"
    if not body:
        return "it is empty"
    if (half := _lone_surrogate(body[:_MAX_SEARCHED_BYTES])) is not None:
        return f"the escape {half} is half of a surrogate pair, and no character by itself"
    return str(error)


def _lone_surrogate(body: bytes) -> str | None:
    for escape in _ESCAPE.finditer(body):
        first, second, alone = escape.groups()
        if alone is not None or (first is not None and second is None):
            return "\\" + (alone or first).decode("ascii", "replace")
    return None
