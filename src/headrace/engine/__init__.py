"""The LLM engine: `AsyncLLMEngine` and what goes in and out of it.

The names load on first use: the core's process comes through here too and needs nothing of the front end, and importing
them needs no torch.
"""

from typing import TYPE_CHECKING

from headrace._lazy import loader_of

if TYPE_CHECKING:
    from headrace.engine.async_engine import AsyncLLMEngine
    from headrace.engine.config import AsyncEngineArgs, CacheConfig, EngineArgs, LoRAConfig, SchedulerConfig
    from headrace.engine.configs import DecodingConfig, VllmConfig
    from headrace.engine.embedding_outputs import EmbeddingOutput, EmbeddingRequestOutput
    from headrace.engine.front.metrics import PrometheusStatLogger
    from headrace.engine.front.request_stream import RequestStream
    from headrace.engine.front.stat_loggers import LoggingStatLogger, StatLogger
    from headrace.engine.front.step_stats import FinishedRequest, StepStats
    from headrace.engine.lora_request import LoRARequest
    from headrace.engine.model_config import ModelConfig
    from headrace.engine.outputs import (
        CompletionOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
        RequestOutputKind,
        TextPrompt,
        TokensPrompt,
    )
    from headrace.engine.parallel_config import ParallelConfig
    from headrace.engine.pooling_params import PoolingParams
    from headrace.engine.request_manager import RequestManager, RequestManagerSettings
    from headrace.engine.request_status import RequestStatus
    from headrace.engine.sampling_params import SamplingParams
    from headrace.engine.settings import FrontEndSettings
    from headrace.engine.statistics import EngineStatistics
    from headrace.engine.streaming_request import StreamingRequest
    from headrace.engine.structured_outputs import GuidedDecodingParams, StructuredOutputsParams
    from headrace.engine.text_stream import stream_generate

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CacheConfig",
    "CompletionOutput",
    "DecodingConfig",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineStatistics",
    "FinishedRequest",
    "FrontEndSettings",
    "GuidedDecodingParams",
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
    "TokensPrompt",
    "VllmConfig",
    "stream_generate",
]

__getattr__ = loader_of(
    __name__,
    {
        "AsyncEngineArgs": "headrace.engine.config",
        "AsyncLLMEngine": "headrace.engine.async_engine",
        "CacheConfig": "headrace.engine.config",
        "CompletionOutput": "headrace.engine.outputs",
        "DecodingConfig": "headrace.engine.configs",
        "EmbeddingOutput": "headrace.engine.embedding_outputs",
        "EmbeddingRequestOutput": "headrace.engine.embedding_outputs",
        "EngineArgs": "headrace.engine.config",
        "EngineStatistics": "headrace.engine.statistics",
        "FinishedRequest": "headrace.engine.front.step_stats",
        "FrontEndSettings": "headrace.engine.settings",
        "GuidedDecodingParams": "headrace.engine.structured_outputs",
        "LoRAConfig": "headrace.engine.config",
        "LoRARequest": "headrace.engine.lora_request",
        "LoggingStatLogger": "headrace.engine.front.stat_loggers",
        "Logprob": "headrace.engine.outputs",
        "ModelConfig": "headrace.engine.model_config",
        "ParallelConfig": "headrace.engine.parallel_config",
        "PoolingParams": "headrace.engine.pooling_params",
        "PrometheusStatLogger": "headrace.engine.front.metrics",
        "RequestManager": "headrace.engine.request_manager",
        "RequestManagerSettings": "headrace.engine.request_manager",
        "RequestMetrics": "headrace.engine.outputs",
        "RequestOutput": "headrace.engine.outputs",
        "RequestOutputKind": "headrace.engine.outputs",
        "RequestStatus": "headrace.engine.request_status",
        "RequestStream": "headrace.engine.front.request_stream",
        "SamplingParams": "headrace.engine.sampling_params",
        "SchedulerConfig": "headrace.engine.config",
        "StatLogger": "headrace.engine.front.stat_loggers",
        "StepStats": "headrace.engine.front.step_stats",
        "StreamingRequest": "headrace.engine.streaming_request",
        "StructuredOutputsParams": "headrace.engine.structured_outputs",
        "TextPrompt": "headrace.engine.outputs",
        "TokensPrompt": "headrace.engine.outputs",
        "VllmConfig": "headrace.engine.configs",
        "stream_generate": "headrace.engine.text_stream",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
