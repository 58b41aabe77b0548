"""vLLM's `AsyncMicrobatchTokenizer`, mended: many waiting requests, one call."""

from headrace.tokenization.microbatch.callables import EncodedPrompt
from headrace.tokenization.microbatch.tokenizer import AsyncMicrobatchTokenizer

__all__ = ["AsyncMicrobatchTokenizer", "EncodedPrompt"]
