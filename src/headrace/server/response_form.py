"""What a chat's answer is called in the words of the Responses API. Pure."""

import uuid
from collections.abc import Sequence

from headrace.openai.from_responses import ResponseChat
from headrace.openai.schema.chat import ChatChoice
from headrace.openai.schema.responses import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    Response,
    ResponseUsage,
    TextConfig,
    TextFormat,
)
from headrace.openai.schema.tools import ToolCall
from headrace.openai.schema.usage import Usage
from headrace.server.generation_api import AnswerHead


def begun_response(head: AnswerHead, chat: ResponseChat) -> Response:
    """A response of which nothing is known yet but what was asked."""
    asked = chat.asked
    return Response(
        id=head.id,
        created_at=head.created,
        model=head.model,
        status="in_progress",
        output=[],
        usage=None,
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata or {},
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=asked.temperature,
        text=TextConfig(format=TextFormat()) if asked.text is None else asked.text,
        tool_choice=asked.tool_choice or "auto",
        tools=asked.tools or [],
        top_logprobs=asked.top_logprobs,
        top_p=asked.top_p,
    )


def end_response(response: Response, output: Sequence[OutputItem], *, finish_reason: str | None, usage: Usage) -> None:
    """Complete it in place."""
    is_cut = finish_reason == "length"
    response.status = "incomplete" if is_cut else "completed"
    response.incomplete_details = IncompleteDetails() if is_cut else None
    response.output = list(output)
    response.usage = ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )


def output_items(choice: ChatChoice) -> list[OutputItem]:
    """Its message, unless it is calls alone, and its calls. The last of them is what was cut off, if anything was."""
    calls = choice.message.tool_calls or []
    items: list[OutputItem] = [_call_item(call) for call in calls]
    if choice.message.content or not calls:
        logprobs = choice.logprobs.content if choice.logprobs is not None else []
        text = OutputText(text=choice.message.content or "", logprobs=logprobs)
        items.insert(0, OutputMessage(id=new_item_id("msg"), status="completed", content=[text]))
    items[-1].status = last_status(choice.finish_reason)
    return items


def last_status(finish_reason: str | None) -> ItemStatus:
    return "incomplete" if finish_reason == "length" else "completed"


def _call_item(call: ToolCall) -> OutputFunctionCall:
    return OutputFunctionCall(
        id=new_item_id("fc"),
        call_id=call.id,
        name=call.function.name,
        arguments=call.function.arguments,
        status="completed",
    )


def new_item_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
