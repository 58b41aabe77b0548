"""/tokenize and /detokenize, as vLLM has them."""

import msgspec

from headrace.openai.schema.numbers import TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`; special tokens are added to a prompt by default, and never to a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, object]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    tools: list[dict[str, object]] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str
