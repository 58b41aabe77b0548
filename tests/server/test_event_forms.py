"""Streams of Anthropic's and of the Responses API, however the engine cuts an answer, join to the whole answer."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.openai.from_messages import chat_of_messages
from headrace.openai.from_responses import ResponseChat, chat_of_response
from headrace.openai.schema.anthropic import CustomTool, InputMessage, MessagesRequest
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.responses import ResponsesRequest
from headrace.openai.schema.usage import PromptTokensDetails, Usage
from headrace.openai.sse import SseDecoder
from headrace.openai.tools.forms import HERMES
from headrace.server.chat import finished_choice
from headrace.server.chat_dialect import AnswerReader
from headrace.server.generation_api import AnswerHead, Choice, Chunks
from headrace.server.messages import MessagesDialect
from headrace.server.responses import ResponsesDialect
from headrace.server.tool_calls import ToolSupport

SUPPORT = ToolSupport(form=HERMES)
HEAD = AnswerHead(id="answer-1", created=1, model="some")
USAGE = Usage(
    prompt_tokens=5, completion_tokens=7, total_tokens=12, prompt_tokens_details=PromptTokensDetails(cached_tokens=2)
)

texts = st.text(alphabet='ab <>{}\n"é', max_size=12)
calls = st.builds(
    lambda city: f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps({"city": city})}}}\n</tool_call>', texts
)
answers = st.lists(st.one_of(texts, calls), max_size=5).map("".join)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def pieces(text: str, sizes: list[int]) -> list[str]:
    found, at, turn = [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        found.append(text[at : at + size])
        at, turn = at + size, turn + 1
    return found


def choice(text: str, *, finish_reason: Any) -> Choice:
    completion = CompletionOutput(index=0, text=text, token_ids=[1], finish_reason=finish_reason)
    output = RequestOutput("r", None, [1, 2, 3, 4, 5], [completion], finish_reason is not None, num_cached_tokens=2)
    return Choice(0, 0, completion, output)


def events(chunks: Chunks, text: str, sizes: list[int], finish_reason: str) -> list[dict[str, Any]]:
    """What is sent when the answer comes in such pieces, decoded."""

    async def written() -> bytes:
        first = choice("", finish_reason=None)
        sent = chunks.beginning(num_prompt_tokens=5, num_cached_tokens=2) + await chunks.opening(first)
        for piece in pieces(text, sizes):
            sent += chunks.text(choice(piece, finish_reason=None))
        return sent + chunks.finish(choice("", finish_reason=finish_reason)) + chunks.closing(USAGE)

    return [json.loads(data) for data in SseDecoder().feed(asyncio.run(written()))]


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("id", "call_id")}
    return value


def joined_message(told: list[dict[str, Any]]) -> Any:
    message = told[0]["message"]
    growing: dict[int, str] = {}
    for event in told:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"]), "one after another"
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1, "only the last block grows"
            delta = event["delta"]
            growing[event["index"]] = growing.get(event["index"], "") + (delta.get("text") or delta.get("partial_json"))
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    for index, text in growing.items():
        block = message["content"][index]
        block |= {"text": text} if block["type"] == "text" else {"input": json.loads(text)}
    return message


@given(answers, cuts, st.sampled_from(["stop", "length"]))
def test_a_stream_of_messages_joins_to_the_whole_message(text: str, sizes: list[int], reason: str) -> None:
    chat: ChatCompletionRequest = chat_of_messages(
        MessagesRequest(
            messages=[InputMessage(role="user", content="x")],
            max_tokens=9,
            tools=[CustomTool(name="weather", input_schema={"type": "object"})],
        )
    )
    finished = asyncio.run(finished_choice(choice(text, finish_reason=reason), chat, SUPPORT))
    whole = json.loads(MessagesDialect().answer(HEAD, chat, finished, USAGE))
    told = events(MessagesDialect().events(HEAD, chat, AnswerReader(chat, SUPPORT)), text, sizes, reason)
    starts = sum(event["type"] == "content_block_start" for event in told)
    assert starts == sum(event["type"] == "content_block_stop" for event in told)
    streamed = joined_message(told)
    assert _merged(without_ids(streamed)) == _merged(without_ids(whole))


def _merged(message: Any) -> Any:
    """A whole answer has its texts in one block; a stream has one before and one after a call."""
    content = message["content"]
    text = "".join(block["text"] for block in content if block["type"] == "text")
    return message | {"content": [text, *[block for block in content if block["type"] != "text"]]}


@given(answers, cuts, st.sampled_from(["stop", "length"]))
def test_a_stream_of_a_response_joins_to_the_whole_response(text: str, sizes: list[int], reason: str) -> None:
    tool: dict[str, object] = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    chat: ResponseChat = chat_of_response(ResponsesRequest(input="x", tools=[tool]))
    told = events(ResponsesDialect().events(HEAD, chat, AnswerReader(chat, SUPPORT)), text, sizes, reason)
    finished = asyncio.run(finished_choice(choice(text, finish_reason=reason), chat, SUPPORT))
    whole = json.loads(ResponsesDialect().answer(HEAD, chat, finished, USAGE))
    last = told[-1]["response"]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == f"response.{last['status']}"
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    for index, item in enumerate(last["output"]):
        deltas = [event["delta"] for event in told if event.get("output_index") == index and "delta" in event]
        text_of = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(deltas) == text_of
    assert _texts_and_calls(last) == _texts_and_calls(whole)
    assert {key: value for key, value in last.items() if key != "output"} == {
        key: value for key, value in whole.items() if key != "output"
    }


def _texts_and_calls(response: Any) -> Any:
    output = response["output"]
    text = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
    return text, [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
