"""The words in which answers tell their usage: OpenAI's, those of its Responses API, and Anthropic's. Pure."""

from typing import Annotated, Protocol, TypeAlias

import msgspec

from headrace.gateway.routes import UsageForm
from headrace.gateway.unreadable import UNREADABLE

_NumTokens: TypeAlias = Annotated[int, msgspec.Meta(le=1 << 31)]
"""More than any request can have is garbage: an answer that says so tells nothing."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: _NumTokens | None = None


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's `usage`, as far as it is read here. The other forms become it."""

    prompt_tokens: _NumTokens = 0
    completion_tokens: _NumTokens | None = None
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Form(Protocol):
    """Reads one answer in its form."""

    def read(self, data: bytes) -> Usage | None:
        """What a JSON value of the answer, its whole body or an event, tells of the usage of all; None for nothing."""
        ...


class _WithUsage(msgspec.Struct, frozen=True):
    usage: Usage | None = None


class OpenAiForm:
    """`usage` of a body, or of one of the last events of a stream."""

    _DECODER = msgspec.json.Decoder(_WithUsage)

    def read(self, data: bytes) -> Usage | None:
        try:
            return self._DECODER.decode(data).usage
        except UNREADABLE:  # the client's own business; here it only means that nothing was said
            return None


class _ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: _NumTokens
    output_tokens: _NumTokens | None = None
    input_tokens_details: PromptTokensDetails | None = None


class _Response(msgspec.Struct, frozen=True):
    usage: _ResponsesUsage | None = None


class _ResponseEvent(_Response, frozen=True):
    response: _Response | None = None


class ResponsesForm:
    """`usage` of a response; in a stream the last event holds the response."""

    _DECODER = msgspec.json.Decoder(_ResponseEvent)

    def read(self, data: bytes) -> Usage | None:
        try:
            told = self._DECODER.decode(data)
        except UNREADABLE:
            return None
        usage = told.usage or (told.response.usage if told.response is not None else None)
        if usage is None:
            return None
        return Usage(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            prompt_tokens_details=usage.input_tokens_details,
        )


class _MessageUsage(msgspec.Struct, frozen=True):
    input_tokens: _NumTokens | None = None
    cache_creation_input_tokens: _NumTokens | None = None
    cache_read_input_tokens: _NumTokens | None = None
    output_tokens: _NumTokens | None = None


class _Message(msgspec.Struct, frozen=True):
    usage: _MessageUsage | None = None


class _MessageEvent(_Message, frozen=True):
    message: _Message | None = None


class AnthropicForm:
    """`usage` of a message. A stream tells the prompt's with its first event and the answer's with the last but one,
    which may repeat the prompt's; what came from the cache is not among `input_tokens`."""

    _DECODER = msgspec.json.Decoder(_MessageEvent)

    def __init__(self) -> None:
        self._begun = _MessageUsage()

    def read(self, data: bytes) -> Usage | None:
        try:
            told = self._DECODER.decode(data)
        except UNREADABLE:
            return None
        if told.message is not None and told.message.usage is not None:
            self._begun = told.message.usage
        return self._usage(told.usage) if told.usage is not None else None

    def _usage(self, last: _MessageUsage) -> Usage:
        begun = self._begun
        num_new = _latest(last.input_tokens, begun.input_tokens) or 0
        num_written = _latest(last.cache_creation_input_tokens, begun.cache_creation_input_tokens) or 0
        num_cached = _latest(last.cache_read_input_tokens, begun.cache_read_input_tokens)
        return Usage(
            prompt_tokens=num_new + num_written + (num_cached or 0),
            completion_tokens=last.output_tokens,
            prompt_tokens_details=PromptTokensDetails(num_cached) if num_cached is not None else None,
        )


def _latest(later: int | None, earlier: int | None) -> int | None:
    return earlier if later is None else later


_OPENAI = OpenAiForm()
_RESPONSES = ResponsesForm()


def form_of(name: UsageForm) -> Form:
    """The form called `name`, for one answer."""
    if name == "openai":
        return _OPENAI
    return _RESPONSES if name == "responses" else AnthropicForm()
