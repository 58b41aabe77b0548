"""/v1/models."""

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    created: int
    root: str
    """Where the model was loaded from: an absolute path; a gateway on the same machine finds the tokenizer there."""
    max_model_len: int
    parent: str | None = None
    """Of a LoRA adapter: the model that it adapts."""
    object: Literal["model"] = "model"
    owned_by: str = "headrace"


class ModelList(msgspec.Struct, kw_only=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"
