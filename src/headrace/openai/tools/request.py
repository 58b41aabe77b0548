"""What a request says of tools, checked: which functions there are and whether, and which, the answer must call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai.decode import invalid_field
from headrace.openai.schema.tools import FunctionDefinition, NamedTool, ToolDefinition

ToolChoice: TypeAlias = str | dict[str, object]
"""As the request has it: "none", "auto", "required", or an object that names a function."""

_MAX_NAME_CHARS = 256


class _EarlierFunction(msgspec.Struct):
    name: str


class _EarlierCall(msgspec.Struct):
    """What every template reads of a call; the arguments are looked at where the template is."""

    function: _EarlierFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """Functions that the answer may call, or must."""

    functions: tuple[FunctionDefinition, ...]
    choice: Literal["auto", "required", "named"]
    """With "named" there is one function."""
    allows_several: bool
    """Calls in one answer."""

    @property
    def is_forced(self) -> bool:
        return self.choice != "auto"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)


def tool_request(
    tools: Sequence[Mapping[str, object]] | None, *, choice: ToolChoice | None, parallel: bool | None
) -> ToolRequest | None:
    """None when the answer is to call nothing. Raises InvalidRequestError, naming the field."""
    functions = _functions(tools or ())
    name = _chosen_name(choice)
    if not functions:
        if name is not None or choice == "required":
            raise InvalidRequestError(f"tool_choice is {_shown(choice)}, but there are no tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    if name is None:
        return ToolRequest(
            functions=functions,
            choice="required" if choice == "required" else "auto",
            allows_several=parallel is not False,
        )
    named = tuple(function for function in functions if function.name == name)
    if not named:
        known = ", ".join(sorted(function.name for function in functions))
        raise InvalidRequestError(
            f"tool_choice names the function {name!r}, which is not among tools: {known}", param="tool_choice"
        )
    return ToolRequest(functions=named, choice="named", allows_several=False)


def check_calls(calls: object, *, at: str) -> None:
    """Raise InvalidRequestError unless the `tool_calls` of an earlier message, which stand `at`, name functions."""
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        try:
            msgspec.convert(call, _EarlierCall)
        except msgspec.ValidationError as error:
            raise invalid_field(error, within=f"{at}[{index}]") from error


def _functions(tools: Sequence[Mapping[str, object]]) -> tuple[FunctionDefinition, ...]:
    functions = tuple(_function(tool, at=f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in seen:
            param = f"tools[{index}].function.name"
            raise InvalidRequestError(f"{param} is {function.name!r}, which another tool has already", param=param)
        seen.add(function.name)
    return functions


def _function(tool: Mapping[str, object], *, at: str) -> FunctionDefinition:
    kind = tool.get("type")
    if kind != "function":
        message = f"{at}.type is {_shown(kind)}; only tools of type 'function' are supported"
        raise UnsupportedError(message, param=f"{at}.type")
    try:
        function = msgspec.convert(tool, ToolDefinition).function
    except msgspec.ValidationError as error:
        raise invalid_field(error, within=at) from error
    if not 0 < len(function.name) <= _MAX_NAME_CHARS:
        param = f"{at}.function.name"
        message = f"{param} has {len(function.name)} characters, not 1 to {_MAX_NAME_CHARS}"
        raise InvalidRequestError(message, param=param)
    return function


def _chosen_name(choice: ToolChoice | None) -> str | None:
    """The function that `choice` names; None when it leaves the choice, or says which kind it wants."""
    if choice is None or choice in ("none", "auto", "required"):
        return None
    if isinstance(choice, str):
        message = f'tool_choice is {_shown(choice)}, not "none", "auto", "required" or an object that names a function'
        raise InvalidRequestError(message, param="tool_choice")
    if choice.get("type") in ("allowed_tools", "custom"):
        message = f"tool_choice.type is {_shown(choice['type'])}, which is not supported; offer only what may be called"
        raise UnsupportedError(message, param="tool_choice.type")
    try:
        return msgspec.convert(choice, NamedTool).function.name
    except msgspec.ValidationError as error:
        raise invalid_field(error, within="tool_choice") from error


def _shown(value: object) -> str:
    return f"{value!r:.80}"
