"""Public names of a package that load on first use (PEP 562), so that importing it costs nothing.

The package lists the same names in `__all__` and, for type checkers, imports them under `TYPE_CHECKING`.
"""

import importlib
from collections.abc import Callable, Mapping


def loader_of(package: str, home: Mapping[str, str]) -> Callable[[str], object]:
    """A module `__getattr__` for `package`; `home` gives the module that each name lives in."""

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return load
