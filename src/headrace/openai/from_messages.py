"""Anthropic's requests as chat requests, which every other part of the server works with. Pure."""

from collections.abc import Iterator, Sequence

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai.schema.anthropic import (
    ContentBlock,
    CountTokensRequest,
    CustomTool,
    InputMessage,
    MessagesRequest,
    OutputConfig,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.structured import JsonSchemaFormat, ResponseFormat

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of_messages(request: CountTokensRequest) -> ChatCompletionRequest:
    """The same request in OpenAI's words. Raises InvalidRequestError, naming the field as Anthropic has it."""
    if not request.messages:
        raise InvalidRequestError("messages must have at least one message", param="messages")
    is_continued = _is_continued(request.messages)
    choice = request.tool_choice
    chat = ChatCompletionRequest(
        model=request.model,
        messages=[*_system(request.system), *_messages(request.messages)],
        tools=[_tool(tool, at=f"tools[{index}]") for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(choice) if choice is not None else None,
        parallel_tool_calls=not choice.disable_parallel_tool_use if choice is not None else None,
        response_format=_response_format(request.output_config),
        continue_final_message=is_continued,
        add_generation_prompt=not is_continued,
    )
    if isinstance(request, MessagesRequest):
        _set_generation(chat, request)
    return chat


def _set_generation(chat: ChatCompletionRequest, request: MessagesRequest) -> None:
    chat.max_tokens = request.max_tokens
    chat.stream = request.stream
    chat.stop = request.stop_sequences
    chat.temperature = request.temperature
    chat.top_p = request.top_p
    chat.top_k = request.top_k


def _is_continued(messages: Sequence[InputMessage]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = messages[-1]
    if last.role != "assistant":
        return False
    if isinstance(last.content, list) and any(not isinstance(block, TextBlock) for block in last.content):
        message = "messages ends with an assistant's message that is not text alone, which no answer can go on from"
        raise InvalidRequestError(message, param=f"messages[{len(messages) - 1}].content")
    return True


def _system(system: str | list[TextBlock] | None) -> list[dict[str, object]]:
    return [{"role": "system", "content": _text(system)}] if system else []


def _messages(messages: Sequence[InputMessage]) -> Iterator[dict[str, object]]:
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant(message.content, at=f"messages[{index}].content")
        else:
            yield from _others(message.role, message.content, at=f"messages[{index}].content")


def _assistant(blocks: Sequence[ContentBlock], *, at: str) -> dict[str, object]:
    """One message: its text, its calls, what was thought before."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, object]] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            calls.append(
                {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            )
        else:
            _refuse(block, role="assistant", at=f"{at}[{index}]")
    message: dict[str, object] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _others(role: str, blocks: Sequence[ContentBlock], *, at: str) -> Iterator[dict[str, object]]:
    """Results of tools are messages of their own, in their place among the texts."""
    texts: list[dict[str, object]] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append({"type": "text", "text": block.text})
        elif isinstance(block, ToolResultBlock) and role == "user":
            if texts:
                yield {"role": role, "content": texts}
                texts = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content or "")}
        else:
            _refuse(block, role=role, at=f"{at}[{index}]")
    if texts or not blocks:
        yield {"role": role, "content": texts or ""}


def _refuse(block: ContentBlock, *, role: str, at: str) -> None:
    kind = block.__struct_config__.tag
    raise InvalidRequestError(f"{at}.type is {kind!r}, which no message of role {role!r} may hold", param=f"{at}.type")


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _tool(tool: CustomTool, *, at: str) -> dict[str, object]:
    if tool.type not in (None, "custom"):
        message = f"{at}.type is {tool.type!r}; only tools that the client runs are supported (type 'custom')"
        raise UnsupportedError(message, param=f"{at}.type")
    if tool.input_schema is None:
        raise InvalidRequestError(f"{at}.input_schema: the field is required", param=f"{at}.input_schema")
    given = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


def _tool_choice(choice: ToolChoice) -> str | dict[str, object]:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequestError("tool_choice.name: the field is required with type 'tool'", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None:
        return None
    if config.effort is not None:
        message = f"output_config.effort={config.effort!r:.40} is not supported; leave the field out"
        raise UnsupportedError(message, param="output_config.effort")
    if config.format is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=config.format.schema, strict=True))
