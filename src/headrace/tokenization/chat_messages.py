"""OpenAI chat messages made ready for a chat template: checked, with text parts joined or split as the template wants.

Knows the shape of messages, nothing of Jinja. Messages given in are never changed.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeGuard

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedError

Message: TypeAlias = Mapping[str, object]
"""One chat message as JSON gave it: `role`, `content` (text, text parts or nothing), `tool_calls` and so on."""

ContentFormat: TypeAlias = Literal["string", "parts", "parts only"]
"""How a template reads `content`: text only; text or a list of parts, as given; a list of parts only."""

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def prepare_messages(messages: Sequence[Message], *, content_format: ContentFormat) -> list[dict[str, object]]:
    """The messages as a template of `content_format` reads them; copies, where anything is to be changed.

    Fields that are null are left out, as transformers does it. Text parts are joined by newlines for templates that
    want text. Raises InvalidRequestError or UnsupportedError, naming the field.
    """
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message", param="messages")
    return [
        message
        if _is_ready(message, content_format)
        else _prepare(message, at=f"messages[{index}]", form=content_format)
        for index, message in enumerate(messages)
    ]


def with_contents(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The prepared messages, an assistant's without content given an empty one.

    Raises InvalidRequestError, naming the field, for any other that has none.
    """
    for index, message in enumerate(messages):
        if "content" not in message and message["role"] != "assistant":
            at = f"messages[{index}].content"
            raise InvalidRequestError(f"{at} is missing or null, and the model's chat template needs it", param=at)
    return [message if "content" in message else {**message, "content": ""} for message in messages]


def num_text_chars(messages: Sequence[Message]) -> int:
    """Roughly how many characters of text the messages hold, counted without looking at the text."""
    num_chars = 0
    others: list[object] = []
    for message in messages:
        if type(message) is dict or isinstance(message, Mapping):  # the first is seen ten times faster
            for value in message.values():
                if type(value) is str:
                    num_chars += len(value)
                else:
                    others.append(value)
    return num_chars + _num_chars(others) if others else num_chars


def _is_ready(message: Message, form: ContentFormat) -> TypeGuard[dict[str, object]]:
    """Whether a template can read it as it is, as with most messages."""
    return (
        type(message) is dict
        and len(message) == 2
        and type(message.get("role")) is str
        and type(message.get("content")) is str
        and form != "parts only"
    )


def _num_chars(values: list[object]) -> int:
    """Of all texts in them, however deep; `values` is used up."""
    num_chars = 0
    while values:
        value = values.pop()
        if isinstance(value, str):
            num_chars += len(value)
        elif type(value) is dict or isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
    return num_chars


def _prepare(message: Message, *, at: str, form: ContentFormat) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{at} is a {type(message).__name__}, not an object", param=at)
    if not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"{at}.role is {message.get('role')!r}, not a string", param=f"{at}.role")
    prepared = {key: value for key, value in message.items() if value is not None}
    if "content" in prepared:
        prepared["content"] = _content(prepared["content"], at=f"{at}.content", form=form)
    if "tool_calls" in prepared:
        prepared["tool_calls"] = _tool_calls(prepared["tool_calls"], at=f"{at}.tool_calls")
    return _with_reasoning_names(prepared)


def _content(content: object, *, at: str, form: ContentFormat) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form == "parts only" else content
    if not isinstance(content, list | tuple):
        raise InvalidRequestError(f"{at} is a {type(content).__name__}, not text or a list of parts", param=at)
    texts = [_part_text(part, at=f"{at}[{index}]") for index, part in enumerate(content)]
    return "\n".join(texts) if form == "string" else [{"type": "text", "text": text} for text in texts]


def _part_text(part: object, *, at: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{at} is a {type(part).__name__}, not an object", param=at)
    if (kind := part.get("type")) != "text":
        raise UnsupportedError(f"{at}.type is {kind!r}; only parts of type 'text' are supported", param=f"{at}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{at}.text is {text!r}, not a string", param=f"{at}.text")
    return text


def _tool_calls(tool_calls: object, *, at: str) -> list[object]:
    if not isinstance(tool_calls, list | tuple):
        raise InvalidRequestError(f"{at} is a {type(tool_calls).__name__}, not a list", param=at)
    return [_tool_call(call, at=f"{at}[{index}]") for index, call in enumerate(tool_calls)]


def _tool_call(call: object, *, at: str) -> object:
    """The call with its arguments read: the API carries them as JSON text, templates want the object."""
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{at} is a {type(call).__name__}, not an object", param=at)
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    param = f"{at}.function.arguments"
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"{param} is not JSON: {error}", param=param) from error
    return {**call, "function": {**function, "arguments": arguments}}


def _with_reasoning_names(message: dict[str, object]) -> dict[str, object]:
    """Reasoning goes by three names; templates read the first or the second, so both are set."""
    reasoning = next((message[name] for name in _REASONING_FIELDS if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
