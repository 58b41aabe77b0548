"""How a weight becomes a matrix product: by our kernels where they are, else by torch; quantized to int8 on demand.

Every class here is a `Product`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.config import Quantization
from headrace.engine.kernels.library import CpuKernels
from headrace.engine.kernels.memory import Arena
from headrace.engine.kernels.structures import Kind, ProductStructure
from headrace.engine.models.build import Product

_KINDS = {torch.float32: Kind.F32, torch.bfloat16: Kind.BF16}
_QUANTIZED_KINDS: dict[Quantization, Kind] = {"int8": Kind.INT8, "int8-weight-only": Kind.INT8_WEIGHTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Rows:
    """A weight in int8: `values` [N, K] times `scales` [N] of float32, one for each output."""

    values: Tensor
    scales: Tensor


def quantize_rows(weight: Tensor) -> Int8Rows:
    """Round each row to 255 even steps between its extremes, symmetric about 0."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / 127.0
    values = (wide / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round_().to(torch.int8)
    return Int8Rows(values=values, scales=scales)


class TorchProduct:
    """Plain torch: the reference that the others are compared with, on every device."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def unrounded(self, x: Tensor) -> Tensor:
        return self(x)

    def rows(self, row_ids: Tensor) -> Tensor:
        return functional.embedding(row_ids, self._weight)


class TorchInt8Product:
    """int8 by plain torch: exact, and as small, but no faster than the unquantized product."""

    __slots__ = ("_bias", "_dtype", "_is_dynamic", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, *, quantization: Quantization) -> None:
        self._weight = quantize_rows(weight)
        self._bias = bias
        self._dtype = weight.dtype
        self._is_dynamic = quantization == "int8"

    def __call__(self, x: Tensor) -> Tensor:
        return self.unrounded(x).to(x.dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        values = self._weight.values.float()
        inputs = x.float()
        if self._is_dynamic:
            rounded = quantize_rows(x)
            inputs = rounded.values.float() * rounded.scales.unsqueeze(1)
        y = functional.linear(inputs, values) * self._weight.scales
        return y if self._bias is None else y + self._bias.float()

    def rows(self, row_ids: Tensor) -> Tensor:
        return (self._weight.values[row_ids].float() * self._weight.scales[row_ids].unsqueeze(1)).to(self._dtype)


class KernelProduct:
    """Our kernels on a CPU: the weight packed once, in its own type or in int8; sums in float32."""

    __slots__ = ("_dtype", "_held", "kernels", "structure")

    def __init__(
        self,
        kernels: CpuKernels,
        weight: Tensor,
        bias: Tensor | None,
        *,
        quantization: Quantization | None = None,
        arena: Arena | None = None,
    ) -> None:
        self.kernels = kernels
        self._dtype = weight.dtype
        self.structure = ProductStructure(n=weight.shape[0], k=weight.shape[1], kind=_KINDS[weight.dtype])
        self._held: list[Tensor] = []
        """The tensors that the structure points into."""
        if quantization is not None:
            weight = self._quantize(weight, quantization)
        self.structure.packed = self._hold(kernels.pack(weight, arena or Arena(chunk_bytes=0)))
        if bias is not None:
            self.structure.bias = self._hold(bias.float().contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        return self.unrounded(x).to(x.dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        return self.kernels.linear(self.structure, x)

    def rows(self, row_ids: Tensor) -> Tensor:
        return self.kernels.rows(self.structure, row_ids).to(self._dtype)

    def _quantize(self, weight: Tensor, quantization: Quantization) -> Tensor:
        quantized = quantize_rows(weight)
        self.structure.kind = _QUANTIZED_KINDS[quantization]
        padded = self.kernels.padded(len(weight))
        scales, sums = torch.zeros(padded), torch.zeros(padded, dtype=torch.int32)
        scales[: len(weight)] = quantized.scales
        sums[: len(weight)] = 128 * quantized.values.sum(dim=1, dtype=torch.int32)
        self.structure.scales = self._hold(scales)
        self.structure.sums = self._hold(sums)
        return quantized.values

    def _hold(self, tensor: Tensor) -> int:
        self._held.append(tensor)
        return tensor.data_ptr()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductMaker:
    """`MakeProduct` for one model: the fastest product that a weight's type and shape allow."""

    kernels: CpuKernels | None = None
    quantization: Quantization | None = None
    arena: Arena = field(default_factory=Arena)
    """Where packed weights lie, which live as long as each other."""

    def __call__(self, weight: Tensor, bias: Tensor | None) -> Product:
        if self.kernels is not None and _fits_kernels(weight, quantization=self.quantization):
            return KernelProduct(self.kernels, weight, bias, quantization=self.quantization, arena=self.arena)
        if self.quantization is not None:
            return TorchInt8Product(weight, bias, quantization=self.quantization)
        return TorchProduct(weight, bias)


def _fits_kernels(weight: Tensor, *, quantization: Quantization | None) -> bool:
    """Rows come in steps of four bytes."""
    item_bytes = 1 if quantization is not None else weight.itemsize
    return weight.device.type == "cpu" and weight.dtype in _KINDS and weight.shape[1] * item_bytes % 4 == 0
