"""Gives back to the system what was freed: glibc keeps it for later, and loading tokenizers frees a lot for once."""

import ctypes
import sys


def give_back_freed_memory() -> None:
    """Blocking, some milliseconds, without the interpreter. Does nothing where the C library has no such call."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
