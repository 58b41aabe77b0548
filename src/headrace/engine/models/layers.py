"""The layers that the Llama family shares, as callables over flat tokens [T, features]. They hold weights, no state."""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.models.build import ModelBuild
from headrace.engine.models.weights import TensorPart


class Linear:
    """y = x W^T + b; several projections of the same input are one, stacked in the order of their names.

    Workers that share a layer hold `output_parts` of its outputs, each worker's y being those, or `input_part` of its
    inputs: x then has only those, and y is added up over the workers. Sizes are those of the whole layer.
    """

    __slots__ = ("_adapt", "_add_up", "product")

    def __init__(
        self,
        build: ModelBuild,
        *names: str,
        input_size: int,
        output_sizes: tuple[int, ...],
        has_bias: bool = False,
        output_parts: tuple[range, ...] | None = None,
        input_part: range | None = None,
    ) -> None:
        take = build.weights.take
        sizes = list(zip(names, output_sizes, output_parts or map(range, output_sizes), strict=True))
        inputs = None if input_part is None else _part(1, input_part, input_size)
        weight = _stack(
            [take(f"{n}.weight", size, input_size, part=inputs or _part(0, p, size)) for n, size, p in sizes]
        )
        bias = _stack([take(f"{n}.bias", size, part=_part(0, p, size)) for n, size, p in sizes]) if has_bias else None
        self._add_up = None
        if inputs is not None and build.parallel is not None:
            self._add_up = build.parallel.add_up
            bias = bias if build.parallel.rank == 0 else None  # of what is added up, one has the bias
        self.product = build.make_product(weight, bias)
        self._adapt = None
        if build.adapters is not None:
            self._adapt = build.adapters.attach(
                *names,
                input_size=input_size,
                output_sizes=output_sizes,
                output_parts=output_parts,
                input_part=input_part,
            )

    def __call__(self, x: Tensor) -> Tensor:
        y = self.product(x)
        if self._adapt is not None:
            self._adapt(y, x)
        return y if self._add_up is None else self._add_up(y)


class RMSNorm:
    """Scales the last dimension to unit root mean square, times a learnt weight."""

    __slots__ = ("_eps", "_shape", "weight")

    def __init__(self, build: ModelBuild, name: str, *, size: int, eps: float) -> None:
        self.weight = build.weights.take(f"{name}.weight", size)
        self._shape = (size,)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._shape, self.weight, self._eps)


class GatedMLP:
    """down(silu(gate(x)) * up(x)), SwiGLU."""

    __slots__ = ("down", "gate_up")

    def __init__(
        self, build: ModelBuild, name: str, *, hidden_size: int, intermediate_size: int, has_bias: bool = False
    ) -> None:
        self.gate_up = Linear(
            build,
            f"{name}.gate_proj",
            f"{name}.up_proj",
            input_size=hidden_size,
            output_sizes=(intermediate_size, intermediate_size),
            has_bias=has_bias,
            output_parts=(build.share.channels, build.share.channels),
        )
        self.down = Linear(
            build,
            f"{name}.down_proj",
            input_size=intermediate_size,
            output_sizes=(hidden_size,),
            has_bias=has_bias,
            input_part=build.share.channels,
        )

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate).mul_(up))


class Embedding:
    """Rows of a table [vocabulary, hidden] by token id."""

    __slots__ = ("weight",)

    def __init__(self, build: ModelBuild, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self.weight = build.weights.take(f"{name}.weight", vocab_size, hidden_size)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self.weight)


class Head:
    """Logits of hidden states. Its weight [vocabulary, hidden] is the embedding too where the two are tied."""

    __slots__ = ("product",)

    def __init__(self, build: ModelBuild, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self.product = build.make_product(build.weights.take(f"{name}.weight", vocab_size, hidden_size), None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.product.unrounded(x)

    def rows(self, token_ids: Tensor) -> Tensor:
        """Embeddings of these tokens."""
        return self.product.rows(token_ids)


def _part(dim: int, span: range, size: int) -> TensorPart | None:
    """None for the whole tensor."""
    return None if len(span) == size else TensorPart(dim=dim, span=span)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
