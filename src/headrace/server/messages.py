"""/v1/messages and /v1/messages/count_tokens: chats in Anthropic's words."""

from functools import partial
from typing import ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.openai import unbuilt
from headrace.openai.decode import RequestDecoder
from headrace.openai.from_messages import chat_of_messages
from headrace.openai.long_strings import Body
from headrace.openai.schema.anthropic import CountTokensRequest, Message, MessagesRequest, TokensCounted
from headrace.openai.schema.chat import ChatChoice, ChatCompletionRequest
from headrace.openai.schema.usage import Usage
from headrace.server.chat import ChatApi
from headrace.server.chat_dialect import AnswerReader
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.generation_api import AnswerHead, Chunks
from headrace.server.intake import read_body
from headrace.server.message_events import MessageEvents
from headrace.server.message_form import answer_blocks, message_usage, stop_reason, stop_sequence
from headrace.server.serving import Serving
from headrace.server.writer import Writer


class MessagesDialect:
    id_prefix: ClassVar[str] = "msg"
    prompt_param: ClassVar[str] = "messages"
    schema_param: ClassVar[str] = "output_config.format.schema"

    def __init__(self) -> None:
        self._decoder = RequestDecoder(MessagesRequest, unbuilt=unbuilt.MESSAGES)

    def decode(self, body: Body) -> ChatCompletionRequest:
        return chat_of_messages(self._decoder.decode(body))

    def answer(
        self,
        head: AnswerHead,
        request: ChatCompletionRequest,  # noqa: ARG002 - other dialects repeat it
        choice: ChatChoice,
        usage: Usage,
    ) -> bytes:
        has_calls = bool(choice.message.tool_calls)
        message = Message(
            id=head.id,
            model=head.model,
            content=answer_blocks(choice.message),
            stop_reason=stop_reason(choice.finish_reason, choice.stop_reason, has_calls=has_calls),
            stop_sequence=stop_sequence(choice.stop_reason),
            usage=message_usage(usage),
        )
        return msgspec.json.encode(message)

    def events(
        self,
        head: AnswerHead,
        request: ChatCompletionRequest,  # noqa: ARG002 - other dialects repeat it
        reader: AnswerReader,
    ) -> Chunks:
        return MessageEvents(head, reader)


class CountTokens:
    """How many tokens the prompt of such a chat has. Counted as they are for an answer, which needs no engine."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._chat = ChatApi()
        self._decoder = RequestDecoder(CountTokensRequest, unbuilt=unbuilt.MESSAGES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = chat_of_messages(self._decoder.decode(await read_body(scope, receive, serving.settings)))
            serving.check_model(request.model)
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                (prompt,) = await self._chat.tokenize(request, serving)
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                await writer.send_json(msgspec.json.encode(TokensCounted(input_tokens=len(prompt))))
