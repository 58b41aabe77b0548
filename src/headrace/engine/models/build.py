"""What the layers of a model are made from: its weights, and how each weight becomes a product, shared or adapted.

Every layer is given one `ModelBuild` and asks it; so kernels, LoRA and tensor parallelism need no word in a
family's own file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.models.weights import WeightSource

Product: TypeAlias = Callable[[Tensor], Tensor]
"""x [T, in] to x W^T + b [T, out]."""

MakeProduct: TypeAlias = Callable[[Tensor, Tensor | None], Product]
"""From weight [out, in] and bias [out]."""


class LinearAdapters(Protocol):
    """LoRA, as linear layers see it."""

    def attach(self, *names: str, input_size: int, output_sizes: tuple[int, ...]) -> Callable[[Tensor, Tensor], None]:
        """What a layer calls with (y, x) after its product: adds the step's adapters to y in place."""
        ...


class Parallel(Protocol):
    """The group of workers that share a model's layers."""

    rank: int
    size: int

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum of all workers' partial results; may reuse the tensor."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBuild:
    """Given to every layer's constructor."""

    weights: WeightSource
    device: torch.device
    dtype: torch.dtype
    make_product: MakeProduct
    adapters: LinearAdapters | None = None
    parallel: Parallel | None = None
    """None for one worker."""


def torch_product(weight: Tensor, bias: Tensor | None) -> Product:
    """The reference that every faster product is compared with."""

    def product(x: Tensor) -> Tensor:
        return functional.linear(x, weight, bias)

    return product
