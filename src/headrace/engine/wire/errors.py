"""Our exceptions between the core's process and the front end's: the class goes by name, so that it is raised again."""

import headrace.errors
from headrace.engine.wire.messages import WireError
from headrace.errors import EngineError, HeadraceError


def to_wire(error: Exception) -> WireError:
    """`error` as a message; what is not one of ours becomes an EngineError that names its class."""
    if isinstance(error, HeadraceError):
        return WireError(kind=_public_name(error), message=error.message, param=error.param)
    return WireError(kind=EngineError.__name__, message=f"{type(error).__name__}: {error}")


def from_wire(error: WireError) -> HeadraceError:
    """The exception that `to_wire` was given, as far as its class is one of ours."""
    return error_class(error.kind)(error.message, param=error.param)


def error_class(kind: str) -> type[HeadraceError]:
    """The class of that name in `headrace.errors`; EngineError for a name that is not there."""
    found = getattr(headrace.errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, HeadraceError) else EngineError


def _public_name(error: HeadraceError) -> str:
    """Of the nearest class that the other side knows: a module of ours may have derived one of its own."""
    names = [cls.__name__ for cls in type(error).__mro__]
    return next(name for name in names if hasattr(headrace.errors, name))
