"""The LLM engine: `AsyncLLMEngine` and what goes in and out of it.

The names load on first use: the core's process comes through here too and needs nothing of the front end, and importing
them needs no torch.
"""

import importlib
from typing import TYPE_CHECKING

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

_HOME = {
    "AsyncEngineArgs": "config",
    "AsyncLLMEngine": "async_engine",
    "CompletionOutput": "outputs",
    "EngineArgs": "config",
    "EngineStatistics": "statistics",
    "FrontEndSettings": "settings",
    "ModelConfig": "model_config",
    "RequestMetrics": "outputs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "outputs",
    "RequestStream": "request_stream",
    "SamplingParams": "sampling_params",
    "TokensPrompt": "outputs",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headrace.engine.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
