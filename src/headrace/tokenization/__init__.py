"""Text to token ids, exactly and without ever blocking the event loop. `TokenizationService` is the one door.

Names load on first use: a program that only counts bytes does not pay for Jinja and the tokenizers library.
"""

from typing import TYPE_CHECKING

from headrace._lazy import loader_of

if TYPE_CHECKING:
    from headrace.tokenization.byte_tokenizer import ByteTokenizer
    from headrace.tokenization.chat_template import ChatTemplate
    from headrace.tokenization.huggingface import HuggingFaceTokenizer
    from headrace.tokenization.load import load_tokenizer
    from headrace.tokenization.microbatch import AsyncMicrobatchTokenizer, EncodedPrompt
    from headrace.tokenization.prompt import ChatPrompt, Encoded, Saturated
    from headrace.tokenization.service import TokenizationService, TokenizationStatistics
    from headrace.tokenization.settings import TokenizationSettings
    from headrace.tokenization.tokenizer import IncrementalDecoder, TokenIds, Tokenizer

__all__ = [
    "AsyncMicrobatchTokenizer",
    "ByteTokenizer",
    "ChatPrompt",
    "ChatTemplate",
    "Encoded",
    "EncodedPrompt",
    "HuggingFaceTokenizer",
    "IncrementalDecoder",
    "Saturated",
    "TokenIds",
    "TokenizationService",
    "TokenizationSettings",
    "TokenizationStatistics",
    "Tokenizer",
    "load_tokenizer",
]

__getattr__ = loader_of(
    __name__,
    {
        "AsyncMicrobatchTokenizer": "headrace.tokenization.microbatch",
        "ByteTokenizer": "headrace.tokenization.byte_tokenizer",
        "ChatPrompt": "headrace.tokenization.prompt",
        "ChatTemplate": "headrace.tokenization.chat_template",
        "Encoded": "headrace.tokenization.prompt",
        "EncodedPrompt": "headrace.tokenization.microbatch",
        "HuggingFaceTokenizer": "headrace.tokenization.huggingface",
        "IncrementalDecoder": "headrace.tokenization.tokenizer",
        "Saturated": "headrace.tokenization.prompt",
        "TokenIds": "headrace.tokenization.tokenizer",
        "TokenizationService": "headrace.tokenization.service",
        "TokenizationSettings": "headrace.tokenization.settings",
        "TokenizationStatistics": "headrace.tokenization.service",
        "Tokenizer": "headrace.tokenization.tokenizer",
        "load_tokenizer": "headrace.tokenization.load",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
