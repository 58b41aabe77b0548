"""What is compiled of the work that every request causes, where a C compiler was there when Headrace was installed.

`compiled` is the extension module, or None. Each of its functions has a twin in Python beside its caller, with equal
results; nobody needs it, and nothing is said where it is missing. One C file belongs to one owner; module.c has the
table of them.
"""

import importlib
import logging
from typing import Protocol, cast

logger = logging.getLogger(__name__)

_VERSION = 2
"""HEADRACE_NATIVE_VERSION in native.h."""


class Compiled(Protocol):
    """The extension module; its docstrings stand in the C files. What is an `object` here has a buffer."""

    VERSION: int

    def own_hashes(self, ids: object, keys: object, block_size: int, /) -> bytes: ...

    def chain(self, ids: object, keys: object, block_size: int, start: int, salt: int, /) -> bytes: ...

    def num_plain_events(self, data: bytes, /) -> int: ...

    def highest(self, key: int, names: list[str], /) -> int: ...


def _load() -> Compiled | None:
    try:
        module = cast("Compiled", importlib.import_module("headrace._native._compiled"))
    except ImportError as error:
        logger.debug("nothing compiled: %s", error)
        return None
    if module.VERSION != _VERSION:
        logger.warning(
            "the compiled module of headrace is version %d, not %d, and left alone; install again to build it",
            module.VERSION,
            _VERSION,
        )
        return None
    return module


compiled = _load()
