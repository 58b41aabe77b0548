"""One step's input to a model, and the seam through which its layers attend. Knows neither caches nor block tables."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class AttentionStep(Protocol):
    """Attention of one step's tokens over the context of their requests; a new object each step.

    Suffixes of tensors: t tokens of the step, h query heads, k key-value heads, d head size.
    """

    def attend(self, layer: int, q_thd: Tensor, k_tkd: Tensor, v_tkd: Tensor) -> Tensor:
        """Store the new keys and values, attend causally over each token's whole context: [T, H * D]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The tokens of a step, of all requests one after the other."""

    token_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64, of each token in its own request"""
    attention: AttentionStep
    output_rows: Tensor | None
    """[S] int64, the tokens whose hidden states are wanted; None for all of them, in order."""
