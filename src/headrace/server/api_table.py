"""What every route of the server takes and gives, for its OpenAPI document. The routes themselves stand in `app.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.openai import unbuilt
from headrace.openai.decode import Neutral
from headrace.openai.schema import admin, anthropic, chat, completions, embeddings, generate, lora, models, responses
from headrace.openai.schema import response_events as events
from headrace.openai.schema import tokenize as tokens

Access = Literal["open", "key", "admin"]
"""Whose key a route wants: nobody's, a client's where the server has keys, the operator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query parameter; `schema` is its JSON schema."""

    name: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one route. Types are those that msgspec knows; `answer` None is an empty body."""

    path: str
    method: Literal["get", "post"] = "post"
    tag: str
    summary: str
    access: Access = "key"
    request: type | None = None
    is_request_optional: bool = False
    unbuilt: Mapping[str, Neutral] | None = None
    """Fields of the request that are refused by name, with the values that are let through."""
    query: tuple[Query, ...] = ()
    answer: object = None
    text_answer: bool = False
    """The answer is plain text."""
    event: object = None
    """What each event of a stream holds, where there may be one."""

    @property
    def has_body(self) -> bool:
        return self.request is not None

    @property
    def is_anthropic(self) -> bool:
        return self.path.startswith("/v1/messages")


_GENERATION = (
    Operation(
        path="/v1/chat/completions",
        tag="OpenAI",
        summary="Answer a chat",
        request=chat.ChatCompletionRequest,
        unbuilt=unbuilt.CHAT,
        answer=chat.ChatCompletion,
        event=chat.ChatCompletionChunk,
    ),
    Operation(
        path="/v1/completions",
        tag="OpenAI",
        summary="Continue texts",
        request=completions.CompletionRequest,
        unbuilt=unbuilt.COMPLETIONS,
        answer=completions.Completion,
        event=completions.Completion,
    ),
    Operation(
        path="/v1/responses",
        tag="OpenAI",
        summary="Answer in the form of the Responses API; nothing is stored",
        request=responses.ResponsesRequest,
        unbuilt=unbuilt.RESPONSES,
        answer=responses.Response,
        event=events.ResponseEvent,
    ),
    Operation(
        path="/v1/embeddings",
        tag="OpenAI",
        summary="Vectors of texts",
        request=embeddings.EmbeddingsRequest,
        unbuilt=unbuilt.EMBEDDINGS,
        answer=embeddings.EmbeddingList,
    ),
    Operation(
        path="/v1/messages",
        tag="Anthropic",
        summary="Answer a chat in Anthropic's form",
        request=anthropic.MessagesRequest,
        unbuilt=unbuilt.MESSAGES,
        answer=anthropic.Message,
        event=anthropic.MessageEvent,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        tag="Anthropic",
        summary="Tokens of a chat's prompt",
        request=anthropic.CountTokensRequest,
        unbuilt=unbuilt.MESSAGES,
        answer=anthropic.TokensCounted,
    ),
    Operation(
        path="/inference/v1/generate",
        tag="tokens",
        summary="Token ids in, token ids out",
        request=generate.GenerateRequest,
        unbuilt=unbuilt.GENERATE,
        answer=generate.GenerateResponse,
        event=generate.GenerateChunk,
    ),
    Operation(
        path="/v1/chat/completions/render",
        tag="tokens",
        summary="What a chat comes down to: a body for /inference/v1/generate",
        request=chat.ChatCompletionRequest,
        unbuilt=unbuilt.CHAT,
        answer=generate.GenerateRequest,
    ),
    Operation(
        path="/v1/completions/render",
        tag="tokens",
        summary="What each prompt comes down to: bodies for /inference/v1/generate",
        request=completions.CompletionRequest,
        unbuilt=unbuilt.COMPLETIONS,
        answer=list[generate.GenerateRequest],
    ),
)

_TOKENIZER = (
    Operation(
        path="/tokenize",
        tag="tokens",
        summary="Token ids of a text or a chat",
        request=tokens.TokenizeRequest,
        unbuilt=unbuilt.TOKENIZE,
        answer=tokens.TokenizeResponse,
    ),
    Operation(
        path="/detokenize",
        tag="tokens",
        summary="The text of token ids",
        request=tokens.DetokenizeRequest,
        answer=tokens.DetokenizeResponse,
    ),
    Operation(
        path="/tokenizer_info",
        method="get",
        tag="tokens",
        summary="The tokenizer's configuration",
        answer=dict[str, object],
    ),
)

_MODELS = (
    Operation(
        path="/v1/models",
        method="get",
        tag="OpenAI",
        summary="The model and its adapters",
        answer=models.ModelList,
    ),
    Operation(path="/v1/models/{model}", method="get", tag="OpenAI", summary="One of them", answer=models.ModelCard),
    Operation(
        path="/v1/load_lora_adapter",
        tag="adapters",
        summary="Load a LoRA adapter, where the operator allows it",
        request=lora.LoadLoRAAdapterRequest,
        answer=str,
        text_answer=True,
    ),
    Operation(
        path="/v1/unload_lora_adapter",
        tag="adapters",
        summary="Unload a LoRA adapter, where the operator allows it",
        request=lora.UnloadLoRAAdapterRequest,
        answer=str,
        text_answer=True,
    ),
)

_STATE = (
    Operation(path="/health", method="get", tag="state", summary="200 while the engine lives", access="open"),
    Operation(path="/ping", method="get", tag="state", summary="The same", access="open"),
    Operation(path="/ping", tag="state", summary="The same", access="open"),
    Operation(
        path="/version",
        method="get",
        tag="state",
        summary="Headrace's version",
        access="open",
        answer=dict[str, str],
    ),
    Operation(
        path="/metrics",
        method="get",
        tag="state",
        summary="Prometheus metrics, under vLLM's names",
        access="open",
        answer=str,
        text_answer=True,
    ),
    Operation(path="/load", method="get", tag="state", summary="Requests being worked on", answer=dict[str, int]),
    Operation(
        path="/kv_event_sources",
        method="get",
        tag="state",
        summary="Where each rank publishes what its prefix cache holds",
        answer=dict[str, dict[str, object]],
    ),
    Operation(
        path="/openapi.json",
        method="get",
        tag="state",
        summary="This document",
        answer=dict[str, object],
    ),
)

_WHOLE_NUMBER: Mapping[str, object] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
_ADMIN = (
    Operation(
        path="/sleep",
        tag="admin",
        summary="Give the engine's memory back",
        access="admin",
        query=(
            Query(name="level", schema=_WHOLE_NUMBER),
            Query(name="mode", schema={"enum": ["abort", "keep"]}),
        ),
        answer=admin.Asleep,
    ),
    Operation(
        path="/wake_up",
        tag="admin",
        summary="Take it again",
        access="admin",
        query=(Query(name="tags", schema={"type": "array", "items": {"type": "string"}}),),
        answer=admin.Woken,
    ),
    Operation(
        path="/is_sleeping",
        method="get",
        tag="admin",
        summary="Whether the engine sleeps",
        access="admin",
        answer=admin.IsSleeping,
    ),
    Operation(
        path="/reset_prefix_cache",
        tag="admin",
        summary="Forget every cached prefix",
        access="admin",
        answer=admin.CacheReset,
    ),
    Operation(
        path="/start_profile",
        tag="admin",
        summary="Begin a profile",
        access="admin",
        request=admin.ProfileRequest,
        is_request_optional=True,
        unbuilt=unbuilt.PROFILE,
    ),
    Operation(path="/stop_profile", tag="admin", summary="End the profile", access="admin"),
    Operation(
        path="/abort",
        tag="admin",
        summary="End requests, or all of them",
        access="admin",
        request=admin.AbortRequest,
        is_request_optional=True,
        answer=admin.Aborted,
    ),
)

OPERATIONS: tuple[Operation, ...] = (*_GENERATION, *_TOKENIZER, *_MODELS, *_STATE, *_ADMIN)
