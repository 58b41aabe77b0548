"""Text to token ids, exactly and without ever blocking the event loop. `TokenizationService` is the one door.

Names load on first use: a program that only counts bytes does not pay for Jinja and the tokenizers library.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.tokenization.byte_tokenizer import ByteTokenizer
    from headrace.tokenization.chat_template import ChatTemplate
    from headrace.tokenization.huggingface import HuggingFaceTokenizer
    from headrace.tokenization.load import load_tokenizer
    from headrace.tokenization.prompt import ChatPrompt, Encoded
    from headrace.tokenization.service import TokenizationService, TokenizationStatistics
    from headrace.tokenization.settings import TokenizationSettings
    from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer

__all__ = [
    "ByteTokenizer",
    "ChatPrompt",
    "ChatTemplate",
    "Encoded",
    "HuggingFaceTokenizer",
    "IncrementalDecoder",
    "TokenIds",
    "TokenizationService",
    "TokenizationSettings",
    "TokenizationStatistics",
    "Tokenizer",
    "load_tokenizer",
]

_HOME = {
    "ByteTokenizer": "byte_tokenizer",
    "ChatPrompt": "prompt",
    "ChatTemplate": "chat_template",
    "Encoded": "prompt",
    "HuggingFaceTokenizer": "huggingface",
    "IncrementalDecoder": "tokenizer",
    "TokenIds": "tokenizer",
    "TokenizationService": "service",
    "TokenizationSettings": "settings",
    "TokenizationStatistics": "service",
    "Tokenizer": "tokenizer",
    "load_tokenizer": "load",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace.tokenization' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headrace.tokenization.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
