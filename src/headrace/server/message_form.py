"""What a chat's answer is called in Anthropic's words. Pure."""

import msgspec

from headrace.openai.schema.anthropic import AnswerBlock, MessageUsage, StopReason, TextBlock, ToolUseBlock
from headrace.openai.schema.chat import AssistantMessage
from headrace.openai.schema.tools import ToolCall
from headrace.openai.schema.usage import Usage


def answer_blocks(message: AssistantMessage) -> list[AnswerBlock]:
    """Its text, if there is any, then its calls. A call that was cut off before its end is none."""
    blocks: list[AnswerBlock] = [TextBlock(text=message.content)] if message.content else []
    calls = (_tool_use(call) for call in message.tool_calls or ())
    return [*blocks, *(call for call in calls if call is not None)]


def _tool_use(call: ToolCall) -> ToolUseBlock | None:
    try:
        arguments = msgspec.json.decode(call.function.arguments, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    return ToolUseBlock(id=call.id, name=call.function.name, input=arguments)


def stop_reason(finish_reason: str | None, stopped_by: object, *, has_calls: bool) -> StopReason:
    """`stopped_by` is the stop string or token, if it was one."""
    if finish_reason == "length":
        return "max_tokens"
    if has_calls:
        return "tool_use"
    return "stop_sequence" if isinstance(stopped_by, str) else "end_turn"


def stop_sequence(stopped_by: object) -> str | None:
    return stopped_by if isinstance(stopped_by, str) else None


def message_usage(usage: Usage) -> MessageUsage:
    """What came from the prefix cache is told apart from the rest of the prompt."""
    num_cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=usage.completion_tokens,
    )
