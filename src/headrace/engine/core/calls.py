"""The methods of a core that the front end may call between two steps, and the types of their arguments."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from headrace.engine.lora_request import LoRARequest
from headrace.engine.wire.errors import to_wire
from headrace.engine.wire.messages import Call, CallResult
from headrace.errors import EngineError, HeadraceError, InvalidRequestError

_NOTHING = tuple[()]

_ARGUMENTS: Mapping[str, Any] = {
    "reset_prefix_cache": _NOTHING,
    "check_integrity": _NOTHING,
    "sleep": tuple[int],
    "wake_up": tuple[tuple[str, ...] | None],
    "is_sleeping": _NOTHING,
    "start_profile": _NOTHING,
    "stop_profile": _NOTHING,
    "add_lora": tuple[LoRARequest],
    "remove_lora": tuple[int],
    "list_loras": _NOTHING,
    "pin_lora": tuple[int],
    "collective_rpc": tuple[bytes],
}
"""By method; a core that lacks one answers so."""


PATIENCE_S: Mapping[str, float] = MappingProxyType({"wake_up": 600.0, "stop_profile": 600.0, "collective_rpc": 600.0})
"""Methods that may take longer than any step does: they read weights, write traces, or do what only the caller knows.
The core may be silent for so long before it is taken for hung."""


def run_call(operations: object, call: Call) -> CallResult:
    """Call the method of `operations`; its result or its error. Errors of ours and failed assertions are answers."""
    try:
        return CallResult(call_id=call.call_id, result=_call(operations, call))
    except (HeadraceError, AssertionError) as error:
        return CallResult(call_id=call.call_id, error=to_wire(error))


def _call(operations: object, call: Call) -> object:
    method = getattr(operations, call.method, None) if call.method in _ARGUMENTS else None
    if method is None:
        raise EngineError(f"the core has no method {call.method!r} to be called")
    return method(*_arguments(call))


def _arguments(call: Call) -> tuple[object, ...]:
    try:
        arguments: tuple[object, ...] = msgspec.convert(call.arguments, _ARGUMENTS[call.method])
    except msgspec.ValidationError as error:
        message = f"{call.method} was called with {call.arguments!r}: {error}"
        raise InvalidRequestError(message, param=call.method) from error
    return arguments
