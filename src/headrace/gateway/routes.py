"""The paths that endpoints answer, and what is to be known of each. Pure. Another route is another line here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self, TypeAlias

UsageForm: TypeAlias = Literal["openai", "responses", "anthropic"]
"""Whose words an answer tells its usage in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTraits:
    """What sets a route apart from others."""

    prompt_param: str = "prompt"
    """The field that holds the prompt, as errors name it."""
    text_fields: tuple[str, ...] = ()
    """Where the prompt's text stands, in its order; none where that is not known here."""
    is_everywhere: bool = False
    """Every engine has it."""
    is_generating: bool = False
    """Its prompt goes through the model's KV cache, and tokens come out."""
    is_free: bool = False
    """No model runs for it, so it uses no tokens."""
    is_counted: bool = False
    """Its prompt's tokens are counted here."""
    limit_fields: tuple[str, ...] = ()
    """What limits its completion, as engines read it; a field that another route has limits nothing here."""
    usage_form: UsageForm = "openai"
    asks_usage: bool = False
    """Its streams tell their usage only when `stream_options` asks for it."""


_CHAT = RouteTraits(
    prompt_param="messages",
    text_fields=("messages",),
    is_everywhere=True,
    is_generating=True,
    is_counted=True,
    limit_fields=("max_completion_tokens", "max_tokens"),
    asks_usage=True,
)
_COMPLETIONS = RouteTraits(
    text_fields=("prompt",),
    is_everywhere=True,
    is_generating=True,
    is_counted=True,
    limit_fields=("max_tokens",),
    asks_usage=True,
)
_RESPONSES = RouteTraits(
    prompt_param="input",
    text_fields=("instructions", "input"),
    is_generating=True,
    is_counted=True,
    limit_fields=("max_output_tokens",),
    usage_form="responses",
)
_MESSAGES = RouteTraits(
    prompt_param="messages",
    text_fields=("system", "messages"),
    is_generating=True,
    is_counted=True,
    limit_fields=("max_tokens",),
    usage_form="anthropic",
)
_GENERATE = RouteTraits(
    prompt_param="token_ids",
    text_fields=("token_ids",),
    is_generating=True,
    is_counted=True,
    limit_fields=("max_tokens",),
    asks_usage=True,
)
_EMBEDDINGS = RouteTraits(prompt_param="input", text_fields=("input",), is_counted=True)
_FREE = RouteTraits(is_free=True)
_POOLING = RouteTraits()


class Route(Enum):
    """A path, POST all of them; a body names its model."""

    _value_: str
    path: str
    """The value, as requests need it: without a call."""
    traits: RouteTraits

    def __new__(cls, path: str, traits: RouteTraits) -> Self:
        route = object.__new__(cls)
        route._value_ = route.path = path
        route.traits = traits
        return route

    __hash__ = object.__hash__  # of one object for each path; Enum's own is a call for every look into a set

    CHAT = "/v1/chat/completions", _CHAT
    COMPLETIONS = "/v1/completions", _COMPLETIONS
    RESPONSES = "/v1/responses", _RESPONSES
    MESSAGES = "/v1/messages", _MESSAGES
    GENERATE = "/inference/v1/generate", _GENERATE
    EMBEDDINGS = "/v1/embeddings", _EMBEDDINGS
    COUNT_TOKENS = "/v1/messages/count_tokens", _FREE
    TOKENIZE = "/tokenize", _FREE
    DETOKENIZE = "/detokenize", _FREE
    CHAT_RENDER = "/v1/chat/completions/render", _FREE
    COMPLETIONS_RENDER = "/v1/completions/render", _FREE
    # Their prompts have forms of their own, so they are charged by their bytes and then by what the engine says.
    POOLING = "/pooling", _POOLING
    CLASSIFY = "/classify", _POOLING
    SCORE = "/score", _POOLING
    V1_SCORE = "/v1/score", _POOLING
    RERANK = "/rerank", _POOLING
    V1_RERANK = "/v1/rerank", _POOLING
    V2_RERANK = "/v2/rerank", _POOLING


ROUTES: Mapping[str, Route] = {route.path: route for route in Route}
"""What endpoints answer, by path."""


def is_anthropic(path: str) -> bool:
    """Whether clients of this path expect errors in Anthropic's form."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")
