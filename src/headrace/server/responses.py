"""/v1/responses: a chat in the words of OpenAI's Responses API. Nothing is stored."""

from typing import ClassVar

import msgspec

from headrace.openai import unbuilt
from headrace.openai.decode import RequestDecoder
from headrace.openai.from_responses import ResponseChat, chat_of_response
from headrace.openai.long_strings import Body
from headrace.openai.schema.chat import ChatChoice
from headrace.openai.schema.responses import ResponsesRequest
from headrace.openai.schema.usage import Usage
from headrace.server.chat_dialect import AnswerReader
from headrace.server.generation_api import AnswerHead, Chunks
from headrace.server.response_events import ResponseEvents
from headrace.server.response_form import begun_response, end_response, output_items


class ResponsesDialect:
    id_prefix: ClassVar[str] = "resp"
    prompt_param: ClassVar[str] = "input"
    schema_param: ClassVar[str] = "text.format.schema"

    def __init__(self) -> None:
        self._decoder = RequestDecoder(ResponsesRequest, unbuilt=unbuilt.RESPONSES)

    def decode(self, body: Body) -> ResponseChat:
        return chat_of_response(self._decoder.decode(body))

    def answer(self, head: AnswerHead, request: ResponseChat, choice: ChatChoice, usage: Usage) -> bytes:
        response = begun_response(head, request)
        end_response(response, output_items(choice), finish_reason=choice.finish_reason, usage=usage)
        return msgspec.json.encode(response)

    def events(self, head: AnswerHead, request: ResponseChat, reader: AnswerReader) -> Chunks:
        return ResponseEvents(head, request, reader)
