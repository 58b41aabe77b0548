"""What chat and completions have in common: how to sample, how to stream."""

import msgspec

from headrace.openai.schema.cache_salt import CacheSalt
from headrace.openai.schema.numbers import Int64, TokenId
from headrace.openai.schema.structured import ResponseFormat, StructuredOutputs


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """The fields that both routes take. Null or absent means the model's own default, which the engine knows."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool | None = None
    min_tokens: Int64 | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    spaces_between_special_tokens: bool | None = None
    n: Int64 | None = None
    logit_bias: dict[TokenId, float] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Int64 | None = None
    logprob_token_ids: list[TokenId] | None = None
    stream_interval: Int64 | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, object] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
