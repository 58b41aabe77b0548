"""Tools in a chat: what a request offers and chooses, and the calls in its answer."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class FunctionDefinition(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    """A JSON schema; without one the function takes nothing."""
    strict: bool | None = None
    """The arguments must follow the schema, to the letter."""


class ToolDefinition(msgspec.Struct, kw_only=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """A `tool_choice` that leaves none."""

    function: FunctionName
    type: Literal["function"]


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(msgspec.Struct, kw_only=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """The first of a call has `id`, `type` and the name; all have more of its arguments."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
