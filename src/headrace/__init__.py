"""Headrace: everything between an LLM client's socket and the model's KV cache.

The public names load on first use, so that ``import headrace`` is fast and needs no torch.
"""

from typing import TYPE_CHECKING

from headrace._lazy import loader_of
from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.aio import (
        cancel_task_threadsafe,
        collect_from_async_generator,
        in_loop,
        make_async,
        merge_async_iterators,
        run_in_loop,
    )
    from headrace.engine import (
        AsyncEngineArgs,
        AsyncLLMEngine,
        CacheConfig,
        CompletionOutput,
        DecodingConfig,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        EngineArgs,
        EngineStatistics,
        FinishedRequest,
        FrontEndSettings,
        LoggingStatLogger,
        Logprob,
        LoRAConfig,
        LoRARequest,
        ModelConfig,
        ParallelConfig,
        PoolingParams,
        PrometheusStatLogger,
        RequestManager,
        RequestManagerSettings,
        RequestMetrics,
        RequestOutput,
        RequestOutputKind,
        RequestStatus,
        RequestStream,
        SamplingParams,
        SchedulerConfig,
        StatLogger,
        StepStats,
        StreamingRequest,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
        VllmConfig,
        stream_generate,
    )
    from headrace.tokenization import AsyncMicrobatchTokenizer, ChatPrompt, TokenizationService, TokenizationSettings

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "AsyncMicrobatchTokenizer",
    "CacheConfig",
    "ChatPrompt",
    "CompletionOutput",
    "DecodingConfig",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineStatistics",
    "FinishedRequest",
    "FrontEndSettings",
    "LoRAConfig",
    "LoRARequest",
    "LoggingStatLogger",
    "Logprob",
    "ModelConfig",
    "ParallelConfig",
    "PoolingParams",
    "PrometheusStatLogger",
    "RequestManager",
    "RequestManagerSettings",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStatus",
    "RequestStream",
    "SamplingParams",
    "SchedulerConfig",
    "StatLogger",
    "StepStats",
    "StreamingRequest",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokenizationService",
    "TokenizationSettings",
    "TokensPrompt",
    "VllmConfig",
    "__version__",
    "cancel_task_threadsafe",
    "collect_from_async_generator",
    "in_loop",
    "make_async",
    "merge_async_iterators",
    "run_in_loop",
    "stream_generate",
]

_AIO = (
    "cancel_task_threadsafe",
    "collect_from_async_generator",
    "in_loop",
    "make_async",
    "merge_async_iterators",
    "run_in_loop",
)
_TOKENIZATION = ("AsyncMicrobatchTokenizer", "ChatPrompt", "TokenizationService", "TokenizationSettings")

__getattr__ = loader_of(
    __name__,
    {
        **dict.fromkeys(__all__, "headrace.engine"),
        **dict.fromkeys(_AIO, "headrace.aio"),
        **dict.fromkeys(_TOKENIZATION, "headrace.tokenization"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
