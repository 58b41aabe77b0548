"""/v1/embeddings."""

from typing import Literal

import msgspec

from headrace.openai.schema.cache_salt import CacheSalt
from headrace.openai.schema.numbers import Int64, TokenId


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """`input` is a string, strings, the token ids of one text, or lists of them; `prompt_list` tells them apart."""

    input: str | list[str | TokenId | list[TokenId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Int64 | None = None
    normalize: bool | None = True
    """vLLM's: whether vectors have length 1."""
    add_special_tokens: bool | None = True
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None


class Embedding(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[float] | str
    """Numbers, or their bytes as base64: float32, little-endian."""
    object: Literal["embedding"] = "embedding"


class EmbeddingsUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class EmbeddingList(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"
