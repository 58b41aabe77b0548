"""Calls of worker methods with arguments and results of any kind, as bytes: pickled, by value where a function is ours.

The one place where pickles are made or read. They only ever pass between processes that one engine started.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from headrace.errors import EngineError, InvalidRequestError

MAX_RESULT_BYTES = 48 * 2**20
"""What all workers return together; the channel to the front end takes little more in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall:
    """What every worker is to do."""

    method: str | Callable[..., object]
    """A public method of the worker, or a function that is given the worker first."""
    timeout_s: float | None = None
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.method if isinstance(self.method, str) else getattr(self.method, "__qualname__", repr(self.method))


def pack_call(call: RemoteCall) -> bytes:
    """Raises InvalidRequestError when the function or an argument cannot be pickled."""
    try:
        return _dump(call)
    except _PICKLING_ERRORS as error:
        message = f"collective_rpc of {call.name} cannot be sent to the workers: {error}; send plain values"
        raise InvalidRequestError(message, param="args") from error


def unpack_call(packed: bytes) -> RemoteCall:
    """Raises EngineError when a class or module that the call names is not there in this process."""
    try:
        return cast("RemoteCall", pickle.loads(packed))  # noqa: S301 - from our own front end
    except (*_PICKLING_ERRORS, ImportError) as error:
        message = f"a worker cannot rebuild the function or its arguments: {type(error).__name__}: {error}"
        raise EngineError(message) from error


def pack_results(results: list[object], *, name: str) -> bytes:
    """Raises EngineError when a result cannot be pickled, or all together are too long."""
    try:
        packed = _dump(results)
    except _PICKLING_ERRORS as error:
        message = f"what {name} returned cannot be sent back: {error}; return plain values"
        raise EngineError(message) from error
    if len(packed) > MAX_RESULT_BYTES:
        message = f"{name} returned {len(packed)} bytes; a call may return {MAX_RESULT_BYTES}, return less"
        raise EngineError(message)
    return packed


def unpack_results(packed: bytes) -> list[object]:
    """Raises EngineError when a class of a result is not there in this process."""
    try:
        return cast("list[object]", pickle.loads(packed))  # noqa: S301 - from our own core
    except (*_PICKLING_ERRORS, ImportError) as error:
        raise EngineError(f"what the workers returned cannot be rebuilt: {type(error).__name__}: {error}") from error


_PICKLING_ERRORS = (pickle.PickleError, TypeError, AttributeError, ValueError, RecursionError, EOFError)
"""What pickling raises for a value that it cannot take, by the pickle module's own account and by experience."""


def _dump(value: object) -> bytes:
    # Functions of `__main__` and lambdas travel by value. Late, since no other call needs it.
    import cloudpickle  # type: ignore[import-untyped]  # it ships no types

    packed: bytes = cloudpickle.dumps(value)
    return packed
