"""Headrace: everything between an LLM client's socket and the model's KV cache.

The public names load on first use, so that ``import headrace`` is fast and needs no torch.
"""

from typing import TYPE_CHECKING

from headrace._lazy import loader_of
from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.engine import (
        AsyncEngineArgs,
        AsyncLLMEngine,
        CompletionOutput,
        EngineArgs,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        TokensPrompt,
    )
    from headrace.tokenization import AsyncMicrobatchTokenizer, ChatPrompt, TokenizationService

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "AsyncMicrobatchTokenizer",
    "ChatPrompt",
    "CompletionOutput",
    "EngineArgs",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "TokenizationService",
    "TokensPrompt",
    "__version__",
]

__getattr__ = loader_of(
    __name__,
    {
        **dict.fromkeys(__all__[:-1], "headrace.engine"),
        **dict.fromkeys(("AsyncMicrobatchTokenizer", "ChatPrompt", "TokenizationService"), "headrace.tokenization"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
