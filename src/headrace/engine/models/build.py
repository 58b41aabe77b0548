"""What the layers of a model are made from: its weights, and how each weight becomes a product, shared or adapted.

Every layer is given one `ModelBuild` and asks it; so kernels, LoRA and tensor parallelism need no word in a
family's own file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from headrace.engine.models.weights import WeightSource
from headrace.engine.parallel_config import LayerShare


class Product(Protocol):
    """One weight, and x [T, in] to x W^T + b [T, out] in the type of x."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def unrounded(self, x: Tensor) -> Tensor:
        """The same in float32, where the sums are kept in it."""
        ...

    def rows(self, row_ids: Tensor) -> Tensor:
        """Rows [R] int64 of the weight, [R, in] in the model's type: for an embedding that shares it."""
        ...


MakeProduct: TypeAlias = Callable[[Tensor, Tensor | None], Product]
"""From weight [out, in] and bias [out]."""


class LinearAdapters(Protocol):
    """LoRA, as linear layers see it."""

    @property
    def is_used(self) -> bool:
        """Whether the step that runs uses any adapter: a fused kernel may skip the calls where not."""
        ...

    def attach(
        self,
        *names: str,
        input_size: int,
        output_sizes: tuple[int, ...],
        output_parts: tuple[range, ...] | None = None,
        input_part: range | None = None,
    ) -> Callable[[Tensor, Tensor], None]:
        """What a layer calls with (y, x) after its product: adds the step's adapters to y in place.

        Sizes are those of the whole layer; the parts, where given, are what this worker holds of it.
        """
        ...


class Parallel(Protocol):
    """The group of workers that share a model's layers. All of them make the same calls in the same order."""

    rank: int
    size: int

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum of all workers' partial results, the same bits on each; may reuse the tensor."""
        ...

    def least(self, value: int) -> int:
        """The least of all workers' values."""
        ...

    def close(self) -> None:
        """Leave the group; nothing else may be called after it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBuild:
    """Given to every layer's constructor."""

    weights: WeightSource
    device: torch.device
    dtype: torch.dtype
    make_product: MakeProduct
    share: LayerShare
    """What this worker holds of each layer; everything, for one worker."""
    adapters: LinearAdapters | None = None
    parallel: Parallel | None = None
    """None for one worker."""
