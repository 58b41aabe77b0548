"""The adapters' share of every linear layer: what each device slot holds, and which rows of a step use which slot.

Rows of one adapter are taken together, so a step costs two small products per adapter, layer and projection; a step
without adapters costs a look at an empty tuple.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from headrace.engine.lora.adapter import Adapter, LayerSize
from headrace.engine.models.build import MakeProduct, Product

Rows: TypeAlias = slice | Tensor
"""Neighbouring rows of a step, or [n] int64 of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRows:
    """The rows of a step whose requests use the adapter in `slot`."""

    slot: int
    rows: Rows


@dataclass(slots=True)
class StepAdapters:
    """What the step that runs uses; one object, which all layers look at."""

    groups: tuple[SlotRows, ...] = ()


class AdaptedLayers:
    """Implements `LinearAdapters`: hands each layer its part and fills all parts when an adapter takes a slot."""

    def __init__(self, *, device: torch.device, make_product: MakeProduct) -> None:
        self._device = device
        self._make_product = make_product
        self._step = StepAdapters()
        self._layers: list[_AdaptedLinear] = []
        self._sizes: dict[str, LayerSize] = {}

    def __repr__(self) -> str:
        return f"AdaptedLayers({len(self._layers)} layers, {len(self._step.groups)} adapters in this step)"

    @property
    def sizes(self) -> Mapping[str, LayerSize]:
        """All layers that an adapter may change."""
        return self._sizes

    @property
    def is_used(self) -> bool:
        """Whether the step that runs uses any adapter: a fused kernel may skip `attach`'s calls where not."""
        return bool(self._step.groups)

    def attach(
        self,
        *names: str,
        input_size: int,
        output_sizes: tuple[int, ...],
        output_parts: tuple[range, ...] | None = None,
        input_part: range | None = None,
    ) -> Callable[[Tensor, Tensor], None]:
        """See `LinearAdapters`."""
        parts = output_parts or tuple(map(range, output_sizes))
        projections = [
            _Projection(name, outputs=part, inputs=input_part or range(input_size))
            for name, part in zip(names, parts, strict=True)
        ]
        for name, output_size in zip(names, output_sizes, strict=True):
            self._sizes[name] = LayerSize(input_size=input_size, output_size=output_size)
        layer = _AdaptedLinear(projections, step=self._step, device=self._device, make_product=self._make_product)
        self._layers.append(layer)
        return layer

    def fill(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter's tensors on the device, into `slot`."""
        for layer in self._layers:
            layer.fill(slot, adapter)

    def empty(self, slot: int) -> None:
        """Free the slot's memory."""
        for layer in self._layers:
            layer.empty(slot)

    def begin_step(self, groups: Sequence[SlotRows]) -> None:
        """From now on these rows are adapted; every row belongs to one group at most."""
        self._step.groups = tuple(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotPart:
    """One slot's share of one layer. The projections that it changes share one product with the input."""

    down: Product
    """By A [sum of ranks, in]."""
    ups: tuple[tuple[slice, slice, Product], ...]
    """For each projection: its ranks, its outputs, and the product by B [out, rank]."""


@dataclass(frozen=True, slots=True)
class _Projection:
    """One of a layer's stacked weights, and which of its outputs and inputs this worker holds."""

    name: str
    outputs: range
    inputs: range


@dataclass(slots=True)
class _AdaptedLinear:
    """What a linear layer calls after its product."""

    projections: Sequence[_Projection]
    step: StepAdapters = field(kw_only=True)
    device: torch.device = field(kw_only=True)
    make_product: MakeProduct = field(kw_only=True)
    _parts: dict[int, _SlotPart] = field(default_factory=dict)

    def __call__(self, y: Tensor, x: Tensor) -> None:
        for group in self.step.groups:
            part = self._parts.get(group.slot)
            if part is not None:
                _add(y, x, group.rows, part)

    def fill(self, slot: int, adapter: Adapter) -> None:
        self._parts.pop(slot, None)
        downs: list[Tensor] = []
        ups: list[tuple[slice, slice, Product]] = []
        rank_start = output_start = 0
        for projection in self.projections:
            output_end = output_start + len(projection.outputs)
            low_rank = adapter.get(projection.name)
            if low_rank is not None:
                rank_end = rank_start + len(low_rank.a)
                downs.append(low_rank.a[:, _span(projection.inputs)].to(self.device))
                b = low_rank.b[_span(projection.outputs)].to(self.device)
                up = self.make_product(b, None)
                ups.append((slice(rank_start, rank_end), slice(output_start, output_end), up))
                rank_start = rank_end
            output_start = output_end
        if ups:
            self._parts[slot] = _SlotPart(down=self.make_product(torch.cat(downs), None), ups=tuple(ups))

    def empty(self, slot: int) -> None:
        self._parts.pop(slot, None)


def _span(indices: range) -> slice:
    return slice(indices.start, indices.stop)


def _add(y: Tensor, x: Tensor, rows: Rows, part: _SlotPart) -> None:
    """y[rows] += x[rows] A^T B^T."""
    if isinstance(rows, slice):
        _add_to_all(y[rows], x[rows], part)
    else:
        target = y.index_select(0, rows)
        _add_to_all(target, x.index_select(0, rows), part)
        y.index_copy_(0, rows, target)


def _add_to_all(y: Tensor, x: Tensor, part: _SlotPart) -> None:
    h = part.down.unrounded(x)
    for ranks, outputs, up in part.ups:
        y[:, outputs].add_(up.unrounded(h[:, ranks]))
