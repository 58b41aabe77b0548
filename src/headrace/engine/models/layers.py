"""The layers that the Llama family shares, as callables over flat tokens [T, features]. They hold weights, no state."""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.models.build import ModelBuild


class Linear:
    """y = x W^T + b; several projections of the same input are one, stacked in the order of their names."""

    __slots__ = ("_adapt", "_product")

    def __init__(
        self, build: ModelBuild, *names: str, input_size: int, output_sizes: tuple[int, ...], has_bias: bool = False
    ) -> None:
        sizes = list(zip(names, output_sizes, strict=True))
        weight = _stack([build.weights.take(f"{name}.weight", size, input_size) for name, size in sizes])
        bias = _stack([build.weights.take(f"{name}.bias", size) for name, size in sizes]) if has_bias else None
        self._product = build.make_product(weight, bias)
        self._adapt = None
        if build.adapters is not None:
            self._adapt = build.adapters.attach(*names, input_size=input_size, output_sizes=output_sizes)

    def __call__(self, x: Tensor) -> Tensor:
        y = self._product(x)
        if self._adapt is not None:
            self._adapt(y, x)
        return y


class RMSNorm:
    """Scales the last dimension to unit root mean square, times a learnt weight."""

    __slots__ = ("_eps", "_shape", "_weight")

    def __init__(self, build: ModelBuild, name: str, *, size: int, eps: float) -> None:
        self._weight = build.weights.take(f"{name}.weight", size)
        self._shape = (size,)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._shape, self._weight, self._eps)


class GatedMLP:
    """down(silu(gate(x)) * up(x)), SwiGLU."""

    __slots__ = ("_down", "_gate_up")

    def __init__(
        self, build: ModelBuild, name: str, *, hidden_size: int, intermediate_size: int, has_bias: bool = False
    ) -> None:
        self._gate_up = Linear(
            build,
            f"{name}.gate_proj",
            f"{name}.up_proj",
            input_size=hidden_size,
            output_sizes=(intermediate_size, intermediate_size),
            has_bias=has_bias,
        )
        self._down = Linear(
            build,
            f"{name}.down_proj",
            input_size=intermediate_size,
            output_sizes=(hidden_size,),
            has_bias=has_bias,
        )

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(functional.silu(gate).mul_(up))


class Embedding:
    """Rows of a table [vocabulary, hidden] by token id; its transpose gives logits where the two are tied."""

    __slots__ = ("_weight",)

    def __init__(self, build: ModelBuild, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self._weight = build.weights.take(f"{name}.weight", vocab_size, hidden_size)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self._weight)

    def logits(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
