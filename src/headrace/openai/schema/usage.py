"""How many tokens a request took."""

import msgspec


class PromptTokensDetails(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    cached_tokens: int = 0
    """Prompt tokens whose KV entries were found in the prefix cache."""


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens; `total_tokens` is the sum of the other two."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
