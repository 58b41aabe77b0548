"""The fields of OpenAI's API, and of vLLM's extensions of it, that this version refuses by name.

Each maps to the values that ask for nothing and are therefore let through; null always is. What only annotates a
request (`user`, `metadata`, `safety_identifier`, `prompt_cache_key`) changes no answer and is skipped like an unknown
field. Building a feature removes its line here.
"""

from collections.abc import Mapping

from headrace.openai.decode import Neutral

_BOTH: Mapping[str, Neutral] = {
    "detokenize": (True,),
    "guided_decoding_backend": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
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
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Of /v1/chat/completions. Without functions, "auto" chooses none."""

COMPLETIONS: Mapping[str, Neutral] = {
    **_BOTH,
    "best_of": (1,),
    "prompt_embeds": (),
    "suffix": ("",),
}
"""Of /v1/completions."""

EMBEDDINGS: Mapping[str, Neutral] = {
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_activation": (),
}
"""Of /v1/embeddings."""

TOKENIZE: Mapping[str, Neutral] = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
}
"""Of /tokenize."""

RESPONSES: Mapping[str, Neutral] = {
    "access_programs": (),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "mm_processor_kwargs": ({},),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
    "vllm_xargs": ({},),
}
"""Of /v1/responses. Nothing is stored: a response cannot be got again or be continued by its id."""

MESSAGES: Mapping[str, Neutral] = {
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "inference_geo": (),
    "kv_transfer_params": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
}
"""Of /v1/messages."""

GENERATE: Mapping[str, Neutral] = {
    "content_parts": ([],),
    "ec_transfer_params": (),
    "features": (),
    "kv_transfer_params": (),
    "reasoning_ended": (),
    "reasoning_parser_kwargs": (),
}
"""Of /inference/v1/generate."""

PROFILE: Mapping[str, Neutral] = {
    "delay_iterations": (0,),
    "max_iterations": (0,),
    "profile_prefix": (),
}
"""Of /start_profile."""

MESSAGE: tuple[str, ...] = ("audio", "function_call")
"""Of one message of a chat."""
