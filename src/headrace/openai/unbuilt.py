"""The fields of OpenAI's API, and of vLLM's extensions of it, that this version refuses by name.

Each maps to the values that ask for nothing and are therefore let through; null always is. What only annotates a
request (`user`, `metadata`, `safety_identifier`, `prompt_cache_key`) changes no answer and is skipped like an unknown
field. Building a feature removes its line here.
"""

from collections.abc import Mapping

from headrace.openai.decode import Neutral

_BOTH: Mapping[str, Neutral] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "detokenize": (True,),
    "echo": (False,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

CHAT: Mapping[str, Neutral] = {
    **_BOTH,
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
"""Of /v1/chat/completions. Without tools and functions, "auto" chooses none."""

COMPLETIONS: Mapping[str, Neutral] = {
    **_BOTH,
    "best_of": (1,),
    "logprobs": (),  # 0 already asks for the chosen token's
    "prompt_embeds": (),
    "suffix": ("",),
}
"""Of /v1/completions."""

TOKENIZE: Mapping[str, Neutral] = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
}
"""Of /tokenize."""

MESSAGE: tuple[str, ...] = ("audio", "function_call")
"""Of one message of a chat."""
