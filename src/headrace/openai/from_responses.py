"""Requests for responses as chat requests, which every other part of the server works with. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai.decode import invalid_field
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    MessageItem,
    ResponsesRequest,
    TextConfig,
    TextPart,
)
from headrace.openai.schema.structured import JsonSchemaFormat, ResponseFormat

_SAME_NAMES = (
    "model",
    "temperature",
    "top_p",
    "top_logprobs",
    "parallel_tool_calls",
    "stream",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "structured_outputs",
    "priority",
    "cache_salt",
)
"""Fields that mean in a chat what they mean here."""

_ItemT = TypeVar("_ItemT", bound=msgspec.Struct)


class ResponseChat(ChatCompletionRequest, kw_only=True):
    """The chat that a request for a response comes down to."""

    asked: ResponsesRequest


def chat_of_response(request: ResponsesRequest) -> ResponseChat:
    """The same request as a chat. Raises InvalidRequestError, naming the field as this API has it."""
    wants_logprobs = "message.output_text.logprobs" in (request.include or ()) or bool(request.top_logprobs)
    return ResponseChat(
        asked=request,
        messages=[*_instructions(request.instructions), *_messages(request.input)],
        max_completion_tokens=request.max_output_tokens,
        logprobs=wants_logprobs,
        tools=[_tool(tool, at=f"tools[{index}]") for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(request.tool_choice),
        response_format=_response_format(request.text),
        **{name: getattr(request, name) for name in _SAME_NAMES},
    )


def _instructions(instructions: str | None) -> list[dict[str, object]]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _messages(given: str | Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise InvalidRequestError("input must have at least one item", param="input")
    messages: list[dict[str, object]] = []
    for index, item in enumerate(given):
        _add(messages, item, at=f"input[{index}]")
    return messages


def _add(messages: list[dict[str, object]], item: Mapping[str, object], *, at: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        message = _converted(item, MessageItem, at=at)
        messages.append({"role": message.role, "content": _content(message.content)})
    elif kind == "function_call":
        _add_call(messages, _converted(item, FunctionCallItem, at=at))
    elif kind == "function_call_output":
        output = _converted(item, FunctionOutputItem, at=at)
        messages.append({"role": "tool", "tool_call_id": output.call_id, "content": _content(output.output)})
    else:
        raise UnsupportedError(
            f"{at}.type is {kind!r:.60}; only message, function_call and function_call_output are supported",
            param=f"{at}.type",
        )


def _add_call(messages: list[dict[str, object]], item: FunctionCallItem) -> None:
    """Calls that follow each other, or an assistant's text, are one message of a chat."""
    call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _content(content: str | Sequence[TextPart]) -> str | list[dict[str, object]]:
    return content if isinstance(content, str) else [{"type": "text", "text": part.text} for part in content]


def _tool(tool: Mapping[str, object], *, at: str) -> dict[str, object]:
    """As chats write it, one level deeper."""
    if (kind := tool.get("type")) != "function":
        message = f"{at}.type is {kind!r:.60}; only tools of type 'function' are supported, which the client runs"
        raise UnsupportedError(message, param=f"{at}.type")
    function = _converted(tool, FunctionTool, at=at)
    return {
        "type": "function",
        "function": {name: value for name, value in msgspec.structs.asdict(function).items() if value is not None},
    }


def _tool_choice(choice: str | dict[str, object] | None) -> str | dict[str, object] | None:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    if isinstance(choice, dict):
        message = f"tool_choice.type is {choice.get('type')!r:.60}; only 'function', with a name, is supported"
        raise UnsupportedError(message, param="tool_choice.type")
    return choice


def _response_format(config: TextConfig | None) -> ResponseFormat | None:
    if config is None:
        return None
    if config.verbosity not in (None, "medium"):
        message = f"text.verbosity={config.verbosity!r} is not supported by this version; leave the field out"
        raise UnsupportedError(message, param="text.verbosity")
    wanted = config.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        return ResponseFormat(type=wanted.type)
    if wanted.schema is None:
        raise InvalidRequestError("text.format.schema: the field is required", param="text.format.schema")
    schema = JsonSchemaFormat(name=wanted.name, schema=wanted.schema, strict=wanted.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _converted(value: Mapping[str, object], to: type[_ItemT], *, at: str) -> _ItemT:
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        raise invalid_field(error, within=at) from error
