"""What sort of prompt a call has, as far as counts may go wrong by it. Pure."""

from typing import Literal, TypeAlias

import msgspec

from headrace.gateway.identify import Call
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.routes import Route

PromptKind: TypeAlias = Literal[
    "plain", "ids", "truncated", "adapter", "tools", "template_kwargs", "continued", "special_tokens"
]

_WITH_MEDIA = frozenset({Route.CHAT, Route.MESSAGES, Route.RESPONSES})
_WITH_PLAIN_PROMPT = frozenset({Route.COMPLETIONS, Route.EMBEDDINGS})
_MAX_BLANKS = 64
_EMPTY = frozenset({b"", b"null", b"[]", b"{}"})
_MEDIA = (b'"image', b'"input_image', b'"input_audio', b'"audio_url', b'"video', b'"file')


def prompt_kind(call: Call) -> PromptKind:
    """The first that fits, the most telling before others."""
    fields = call.fields
    if brings_ids(call):
        return "ids"
    if fields.truncate_prompt_tokens is not None:
        return "truncated"
    if call.card.parent is not None:
        return "adapter"
    if fields.tools and is_given(fields.tools):
        return "tools"
    if fields.chat_template_kwargs and is_given(fields.chat_template_kwargs):
        return "template_kwargs"
    if fields.continue_final_message or fields.add_generation_prompt is False:
        return "continued"
    if fields.add_special_tokens is not None:
        return "special_tokens"
    return "plain"


def why_uncounted(call: Call, prompt: PromptCount) -> str:
    """Why the call's prompt was not counted; more exactly than the count itself, which does not look at media."""
    if prompt.why == "prompt_not_understood" and call.route in _WITH_MEDIA:
        content = bytes(call.fields.messages) or bytes(call.fields.input)
        if any(mark in content for mark in _MEDIA):
            return "images"
    return prompt.why


def brings_ids(call: Call) -> bool:
    """Whether the prompt comes as token ids, which the engine then takes as they are."""
    fields, route = call.fields, call.route
    if route is Route.GENERATE:
        return True
    if route is Route.CHAT:
        return bool(fields.prompt_token_ids) and is_given(fields.prompt_token_ids)
    if route not in _WITH_PLAIN_PROMPT:
        return False
    prompt = bytes(fields.prompt or fields.input)
    return prompt.startswith(b"[") and prompt[1:_MAX_BLANKS].lstrip()[:1] not in (b'"', b"]", b"")


def is_given(value: msgspec.Raw) -> bool:
    """Whether a field asks for anything."""
    return bool(value) and bytes(value) not in _EMPTY
