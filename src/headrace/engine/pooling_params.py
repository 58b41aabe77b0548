"""How one request wants its prompt turned into a vector: vLLM's field names. This module knows no tensors."""

from typing import Literal, TypeAlias

import msgspec

from headrace.errors import InvalidRequestError

Pooling: TypeAlias = Literal["last", "mean", "cls"]

_POOLINGS = ("last", "mean", "cls")


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Embedding of one request. Raises InvalidRequestError, naming the field, for a value out of its range."""

    pooling_type: Pooling | None = None
    """The hidden state of the last token, the mean over all tokens, or that of the first; None for what the model was
    trained with, "last" where its directory does not say."""
    normalize: bool = True
    """Scale the vector to length 1, after `dimensions` has cut it."""
    dimensions: int | None = None
    """Keep only the first so many numbers; all by default. At most the model's hidden size."""

    def __post_init__(self) -> None:
        if self.pooling_type is not None and self.pooling_type not in _POOLINGS:
            message = f"pooling_type must be 'last', 'mean' or 'cls', got {self.pooling_type!r}"
            raise InvalidRequestError(message, param="pooling_type")
        if not isinstance(self.normalize, bool):
            raise InvalidRequestError(f"normalize must be True or False, got {self.normalize!r}", param="normalize")
        is_whole = isinstance(self.dimensions, int) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and (not is_whole or self.dimensions < 1):
            message = f"dimensions must be a whole number, at least 1, got {self.dimensions!r}"
            raise InvalidRequestError(message, param="dimensions")

    def for_model(self, *, default_pooling: Pooling, hidden_size: int) -> "PoolingParams":
        """These params with `pooling_type` set. Raises InvalidRequestError if the model has fewer `dimensions`."""
        if self.dimensions is not None and self.dimensions > hidden_size:
            message = f"dimensions is {self.dimensions}, but the model's vectors have {hidden_size} numbers"
            raise InvalidRequestError(message, param="dimensions")
        if self.pooling_type is not None:
            return self
        return msgspec.structs.replace(self, pooling_type=default_pooling)

    @property
    def needs_all_tokens(self) -> bool:
        """Whether tokens whose keys and values are cached must be computed all the same."""
        return self.pooling_type != "last"
