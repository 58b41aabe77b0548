"""The whole decoder as one call to our kernels: no Python and no torch between a step's tokens and its hidden states.

`models.decoder` is its twin, layer by layer, and does what this does not: adapters, and layers shared by workers.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.engine.kernels.library import check
from headrace.engine.kernels.paged_attention import KernelAttention, KernelKVCache
from headrace.engine.kernels.structures import Kind, LayerStructure, ModelStructure, StepStructure
from headrace.engine.models.products import KernelProduct


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """What one layer consists of."""

    qkv: KernelProduct
    output: KernelProduct
    gate_up: KernelProduct
    down: KernelProduct
    attention_norm: Tensor
    mlp_norm: Tensor
    head_norms: tuple[Tensor, Tensor] | None
    """Over each head of queries and of keys."""


class FusedDecoder:
    """A decoder's weights as the kernels take them. `rope` is cosines and sines [positions, D / 2] in float32.

    `embedding` [vocabulary, hidden] is None where it is the weight of `head`.
    """

    def __init__(
        self,
        layers: Sequence[FusedLayer],
        *,
        head: KernelProduct,
        embedding: Tensor | None,
        final_norm: Tensor,
        rope: tuple[Tensor, Tensor],
        eps: float,
        dtype: torch.dtype,
    ) -> None:
        self._held: list[object] = [head, *layers, *rope]
        self._dtype = dtype
        self._hidden_size = len(final_norm)
        self._kernels = head.kernels
        self._layers = (LayerStructure * len(layers))(*map(self._layer_structure, layers))
        self._model = ModelStructure(
            num_layers=len(layers),
            hidden_size=self._hidden_size,
            intermediate_size=layers[0].down.structure.k,
            eps=eps,
            layers=self._layers,
            final_norm=self._hold(final_norm),
            cos=rope[0].data_ptr(),
            sin=rope[1].data_ptr(),
            head=head.structure,
        )
        if embedding is not None:
            assert embedding.is_contiguous()
            self._held.append(embedding)
            self._model.embedding = embedding.data_ptr()
            self._model.embedding_kind = Kind.F32 if embedding.dtype == torch.float32 else Kind.BF16
        self._cache: KernelKVCache | None = None
        self._step = StepStructure(hidden_kind=Kind.F32 if dtype == torch.float32 else Kind.BF16)

    def __repr__(self) -> str:
        return f"FusedDecoder({self._model.num_layers} layers, {self._kernels!r})"

    def forward(self, token_ids: Tensor, attention: KernelAttention, output_rows: Tensor | None) -> Tensor:
        """See `CausalModel.forward`."""
        if attention.cache is not self._cache:
            self._bind(attention.cache)
        num_outputs = len(token_ids) if output_rows is None else len(output_rows)
        hidden = torch.empty(num_outputs, self._hidden_size, dtype=self._dtype)
        step = self._step
        step.num_tokens = len(token_ids)
        step.num_spans = len(attention.spans)
        step.num_outputs = num_outputs
        step.token_ids = token_ids.data_ptr()
        step.spans = attention.spans.ctypes.data
        step.output_rows = None if output_rows is None else output_rows.data_ptr()
        step.hidden = hidden.data_ptr()
        kernels = self._kernels
        check(kernels.library.hr_forward(kernels.context, ctypes.byref(self._model), ctypes.byref(step)))
        return hidden

    def _bind(self, cache: KernelKVCache) -> None:
        """Take this cache's layers from now on."""
        self._cache = cache
        self._model.attention = cache.shape
        for layer, memory, window in zip(self._layers, cache.layers, cache.layer_windows, strict=True):
            layer.cache = memory.data_ptr()
            layer.window = window or 0

    def _layer_structure(self, layer: FusedLayer) -> LayerStructure:
        structure = LayerStructure(
            qkv=layer.qkv.structure,
            output=layer.output.structure,
            gate_up=layer.gate_up.structure,
            down=layer.down.structure,
            attention_norm=self._hold(layer.attention_norm),
            mlp_norm=self._hold(layer.mlp_norm),
        )
        if layer.head_norms is not None:
            structure.q_norm, structure.k_norm = map(self._hold, layer.head_norms)
        return structure

    def _hold(self, vector: Tensor) -> int:
        kept = vector.float().contiguous()
        self._held.append(kept)
        return kept.data_ptr()
