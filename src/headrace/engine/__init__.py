"""The LLM engine: `AsyncLLMEngine` and what goes in and out of it.

The names load on first use: the core's process comes through here too and needs nothing of the front end, and importing
them needs no torch.
"""

from typing import TYPE_CHECKING

from headrace._lazy import loader_of

if TYPE_CHECKING:
    from headrace.engine.async_engine import AsyncLLMEngine
    from headrace.engine.config import AsyncEngineArgs, EngineArgs
    from headrace.engine.model_config import ModelConfig
    from headrace.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, RequestOutputKind, TokensPrompt
    from headrace.engine.request_stream import RequestStream
    from headrace.engine.sampling_params import SamplingParams
    from headrace.engine.settings import FrontEndSettings
    from headrace.engine.statistics import EngineStatistics

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "EngineStatistics",
    "FrontEndSettings",
    "ModelConfig",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStream",
    "SamplingParams",
    "TokensPrompt",
]

__getattr__ = loader_of(
    __name__,
    {
        "AsyncEngineArgs": "headrace.engine.config",
        "AsyncLLMEngine": "headrace.engine.async_engine",
        "CompletionOutput": "headrace.engine.outputs",
        "EngineArgs": "headrace.engine.config",
        "EngineStatistics": "headrace.engine.statistics",
        "FrontEndSettings": "headrace.engine.settings",
        "ModelConfig": "headrace.engine.model_config",
        "RequestMetrics": "headrace.engine.outputs",
        "RequestOutput": "headrace.engine.outputs",
        "RequestOutputKind": "headrace.engine.outputs",
        "RequestStream": "headrace.engine.request_stream",
        "SamplingParams": "headrace.engine.sampling_params",
        "TokensPrompt": "headrace.engine.outputs",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
