"""Routes that ask for a chat's answer in words of their own: each turns its request into a chat request and writes one
answer its own way. What a chat is, tools among it, they leave to `chat.py`."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from headrace.errors import InvalidRequestError
from headrace.openai.long_strings import Body
from headrace.openai.schema.chat import ChatChoice, ChatCompletionRequest, Delta
from headrace.openai.schema.usage import Usage
from headrace.server.chat import ChatApi, finished_choice
from headrace.server.generation_api import AnswerHead, Choice, Chunks, Prompt
from headrace.server.serving import Serving
from headrace.server.tool_calls import AnswerParsers, ToolSupport, requested_tools

ChatRequestT = TypeVar("ChatRequestT", bound=ChatCompletionRequest)


class AnswerReader:
    """Reads a stream's one answer: what is text in it and what calls a tool."""

    def __init__(self, request: ChatCompletionRequest, support: ToolSupport) -> None:
        tools = requested_tools(request)
        self._parsers = AnswerParsers(tools, support) if tools is not None else None

    def __repr__(self) -> str:
        return f"AnswerReader({self._parsers!r})"

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold anything but text."""
        return self._parsers is not None

    def text(self, choice: Choice) -> Delta:
        if self._parsers is None:
            return Delta(content=choice.completion.text)
        return self._parsers.feed(choice.index, choice.completion.text) or Delta()

    def finish(self, choice: Choice) -> Delta:
        """What was held back until the end."""
        return (self._parsers.finish(choice.index) if self._parsers is not None else None) or Delta()


class ChatDialect(Protocol[ChatRequestT]):
    """One route's words. Stateless."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def prompt_param(self) -> str: ...

    @property
    def schema_param(self) -> str: ...

    def decode(self, body: Body) -> ChatRequestT:
        """A chat request with one choice. Raises InvalidRequestError, naming the field as the route does."""
        ...

    def answer(self, head: AnswerHead, request: ChatRequestT, choice: ChatChoice, usage: Usage) -> bytes:
        """The JSON of the whole answer."""
        ...

    def events(self, head: AnswerHead, request: ChatRequestT, reader: AnswerReader) -> Chunks: ...


class DialectApi(Generic[ChatRequestT]):
    """A dialect as a generation route."""

    def __init__(self, dialect: ChatDialect[ChatRequestT]) -> None:
        self._dialect = dialect
        self._chat = ChatApi()
        self.id_prefix = dialect.id_prefix
        self.prompt_param = dialect.prompt_param
        self.schema_param = dialect.schema_param

    def __repr__(self) -> str:
        return f"DialectApi({type(self._dialect).__name__})"

    def decode(self, body: Body) -> ChatRequestT:
        return self._dialect.decode(body)

    def max_tokens(self, request: ChatRequestT) -> int | None:
        return self._chat.max_tokens(request)

    def logprobs(self, request: ChatRequestT) -> int | None:
        return self._chat.logprobs(request)

    def prompt_logprobs(self, request: ChatRequestT) -> int | None:
        return self._chat.prompt_logprobs(request)

    async def tokenize(self, request: ChatRequestT, serving: Serving) -> Sequence[Prompt]:
        """What the chat's messages are refused for is told of the field that they came in."""
        try:
            return await self._chat.tokenize(request, serving)
        except InvalidRequestError as error:
            if error.param is None or not error.param.startswith("messages"):
                raise
            raise type(error)(error.message, param=self.prompt_param, code=error.code) from error

    async def answer(
        self, head: AnswerHead, request: ChatRequestT, choices: Sequence[Choice], usage: Usage, serving: Serving
    ) -> bytes:
        (choice,) = choices
        finished = await finished_choice(choice, request, serving.tools)
        return self._dialect.answer(head, request, finished, usage)

    def chunks(self, head: AnswerHead, request: ChatRequestT, serving: Serving) -> Chunks:
        return self._dialect.events(head, request, AnswerReader(request, serving.tools))
