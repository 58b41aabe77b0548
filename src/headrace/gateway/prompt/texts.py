"""What of a call the model gets to read: texts and chats to encode, or the token ids that it brings. Pure.

Chats of every form become what the engine's server makes of them, by the same conversions.
"""

from typing import Annotated, TypeAlias

import msgspec

from headrace.errors import RequestError
from headrace.gateway.identify import Call, CallFields
from headrace.gateway.routes import Route
from headrace.openai import unbuilt
from headrace.openai.checks import check_messages, wants_generation_prompt
from headrace.openai.decode import RequestDecoder
from headrace.openai.from_messages import chat_of_messages
from headrace.openai.from_responses import chat_of_response
from headrace.openai.schema.anthropic import CountTokensRequest
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.responses import ResponsesRequest
from headrace.openai.schema.tokenize import TokenizeRequest
from headrace.tokenization import ChatPrompt, TokenIds
from headrace.tokenization.tokenizer import pack_token_ids

_TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_TEXTS = msgspec.json.Decoder(str | list[str | _TokenId | list[_TokenId]])
_TOKEN_IDS = msgspec.json.Decoder(list[_TokenId])
_MESSAGES = msgspec.json.Decoder(list[dict[str, object]])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_RESPONSES = RequestDecoder(ResponsesRequest, unbuilt=unbuilt.RESPONSES)
_ANTHROPIC = RequestDecoder(CountTokensRequest, unbuilt=unbuilt.MESSAGES)
_MAX_TEXTS = 2048
_PLAIN_FIELDS = {Route.COMPLETIONS: "prompt", Route.EMBEDDINGS: "input"}
"""Where texts stand that no template renders."""


def given_token_ids(call: Call) -> list[TokenIds] | None:
    """The prompts that come as token ids, so that nothing is to be encoded. Raises MsgspecError."""
    fields = call.fields
    if call.route is Route.GENERATE:
        return [pack_token_ids(_TOKEN_IDS.decode(fields.token_ids))]
    if call.route is Route.CHAT and _is_given(fields.prompt_token_ids):
        return [pack_token_ids(_TOKEN_IDS.decode(fields.prompt_token_ids))]
    if call.route not in _PLAIN_FIELDS or _is_string(_plain_prompt(call)):
        return None
    texts = _TEXTS.decode(_plain_prompt(call))
    if isinstance(texts, str) or not texts or isinstance(texts[0], str):
        return None
    if isinstance(texts[0], int):
        return [pack_token_ids([one for one in texts if isinstance(one, int)])]
    return [pack_token_ids(ids) for ids in texts if isinstance(ids, list)]


def prompts_of(call: Call) -> list[str | ChatPrompt]:
    """What is to be encoded. Raises MsgspecError, and RequestError for what is not counted here."""
    match call.route:
        case Route.CHAT:
            return [_chat_prompt(call.fields)]
        case Route.RESPONSES:
            return [prompt_of_chat(chat_of_response(_RESPONSES.decode(call.request.body)))]
        case Route.MESSAGES | Route.COUNT_TOKENS:
            return [prompt_of_chat(chat_of_messages(_ANTHROPIC.decode(call.request.body)))]
    texts = _TEXTS.decode(_plain_prompt(call))
    prompts: list[str | ChatPrompt] = (
        [texts] if isinstance(texts, str) else [one for one in texts if isinstance(one, str)]
    )
    if len(prompts) > _MAX_TEXTS:
        raise RequestError(f"{len(prompts)} prompts are more than are counted")
    return prompts


def prompt_of_chat(chat: ChatCompletionRequest | TokenizeRequest) -> ChatPrompt:
    """What the model's template renders. Raises InvalidRequestError."""
    messages = chat.messages or []
    check_messages(messages)
    return ChatPrompt(
        messages=messages,
        tools=chat.tools,
        add_generation_prompt=wants_generation_prompt(
            add_generation_prompt=chat.add_generation_prompt, continue_final_message=chat.continue_final_message
        ),
        continue_final_message=bool(chat.continue_final_message),
        template_kwargs=chat.chat_template_kwargs,
    )


def _plain_prompt(call: Call) -> msgspec.Raw:
    raw: msgspec.Raw = getattr(call.fields, _PLAIN_FIELDS[call.route])
    return raw


def _is_string(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[:1].tobytes() == b'"'


def _is_given(raw: msgspec.Raw) -> bool:
    return bool(raw) and raw != b"null"


def _chat_prompt(fields: CallFields) -> ChatPrompt:
    if fields.chat_template is not None:
        raise RequestError("a chat template of the request's own is not rendered here")
    if fields.add_special_tokens:
        raise RequestError("special tokens before what a template wrote are not counted here")
    if _is_given(fields.input_ids) or b'"prompt_token_ids"' in bytes(fields.kv_transfer_params):
        raise RequestError("token ids in a field that only some engines read are not counted here")
    return ChatPrompt(
        messages=_MESSAGES.decode(fields.messages),
        tools=_MESSAGES.decode(fields.tools) if _is_given(fields.tools) else None,
        add_generation_prompt=wants_generation_prompt(
            add_generation_prompt=fields.add_generation_prompt, continue_final_message=fields.continue_final_message
        ),
        continue_final_message=bool(fields.continue_final_message),
        template_kwargs=_OBJECT.decode(fields.chat_template_kwargs) if _is_given(fields.chat_template_kwargs) else None,
    )
