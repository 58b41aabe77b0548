"""How one request wants its prompt turned into a vector: vLLM's field names. This module knows no model."""

from typing import Literal, TypeAlias

import msgspec

from headrace.errors import InvalidRequestError

Pooling: TypeAlias = Literal["last", "mean", "cls"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Embedding of one request. Raises InvalidRequestError, naming the field, for a value out of its range."""

    pooling_type: Pooling = "last"
    """The hidden state of the last token, the mean over all tokens, or that of the first."""
    normalize: bool = True
    """Scale the vector to length 1, after `dimensions` has cut it."""
    dimensions: int | None = None
    """Keep only the first so many numbers; all by default. At most the model's hidden size."""

    def __post_init__(self) -> None:
        if self.pooling_type not in ("last", "mean", "cls"):
            message = f"pooling_type must be 'last', 'mean' or 'cls', got {self.pooling_type!r}"
            raise InvalidRequestError(message, param="pooling_type")
        is_whole = isinstance(self.dimensions, int) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and (not is_whole or self.dimensions < 1):
            message = f"dimensions must be a whole number, at least 1, got {self.dimensions!r}"
            raise InvalidRequestError(message, param="dimensions")
