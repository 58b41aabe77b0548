"""The decoder that the Llama family shares; a family's own module says where it differs (`DecoderTraits`).

Suffixes of tensors: t tokens, h query heads, k key-value heads, d head size.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.engine.kernels.paged_attention import KernelAttention
from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import ModelBuild
from headrace.engine.models.forward_batch import AttentionStep, ForwardBatch
from headrace.engine.models.fused import FusedDecoder, FusedLayer
from headrace.engine.models.layers import Embedding, GatedMLP, Head, Linear, RMSNorm
from headrace.engine.models.products import KernelProduct
from headrace.engine.models.rotary import RotaryEmbedding


class CausalModel(Protocol):
    """A model as the runner sees it. Without state between calls: keys and values live behind the batch's attention."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Normalized hidden states [S, hidden] of the batch's `output_rows`; keys and values of all are stored."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocabulary] of such hidden states."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """Where the families differ."""

    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """RMS norm over each head of queries and keys, before the rotation."""


class Attention:
    """Project, rotate, attend, project back."""

    def __init__(
        self,
        config: ModelConfig,
        traits: DecoderTraits,
        build: ModelBuild,
        *,
        layer: int,
        rotary: RotaryEmbedding,
    ) -> None:
        name = f"model.layers.{layer}.self_attn"
        self._layer = layer
        self._rotary = rotary
        self._head_dim = config.head_dim
        share = build.share
        self._qk_v = [len(share.heads) + len(share.kv_heads), len(share.kv_heads)]
        self._q_k = [len(share.heads), len(share.kv_heads)]
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        query_part, kv_part = _features(share.heads, config.head_dim), _features(share.kv_heads, config.head_dim)
        self.qkv = Linear(
            build,
            f"{name}.q_proj",
            f"{name}.k_proj",
            f"{name}.v_proj",
            input_size=config.hidden_size,
            output_sizes=(query_size, kv_size, kv_size),
            has_bias=traits.has_qkv_bias,
            output_parts=(query_part, kv_part, kv_part),
        )
        self.output = Linear(
            build,
            f"{name}.o_proj",
            input_size=query_size,
            output_sizes=(config.hidden_size,),
            has_bias=traits.has_output_bias,
            input_part=query_part,
        )
        self.norms: tuple[RMSNorm, RMSNorm] | None = None
        if traits.has_qk_norm:
            self.norms = (
                RMSNorm(build, f"{name}.q_norm", size=config.head_dim, eps=config.rms_norm_eps),
                RMSNorm(build, f"{name}.k_norm", size=config.head_dim, eps=config.rms_norm_eps),
            )

    def __call__(self, x: Tensor, factors: tuple[Tensor, Tensor], attention: AttentionStep) -> Tensor:
        heads = self.qkv(x).view(len(x), -1, self._head_dim)
        qk, v_tkd = torch.split(heads, self._qk_v, dim=1)
        if self.norms is not None:
            qk = self._normalize(qk, self.norms)
        q_thd, k_tkd = torch.split(self._rotary.rotate(qk, factors), self._q_k, dim=1)
        return self.output(attention.attend(self._layer, q_thd, k_tkd, v_tkd))

    def _normalize(self, qk: Tensor, norms: tuple[RMSNorm, RMSNorm]) -> Tensor:
        q_thd, k_tkd = torch.split(qk, self._q_k, dim=1)
        return torch.cat((norms[0](q_thd), norms[1](k_tkd)), dim=1)


def _features(heads: range, head_dim: int) -> range:
    """The rows or columns of a weight that belong to these heads."""
    return range(heads.start * head_dim, heads.stop * head_dim)


class DecoderLayer:
    """Attention and MLP, each on the normalized residual stream and added to it."""

    def __init__(
        self,
        config: ModelConfig,
        traits: DecoderTraits,
        build: ModelBuild,
        *,
        layer: int,
        rotary: RotaryEmbedding,
    ) -> None:
        name = f"model.layers.{layer}"
        size, eps = config.hidden_size, config.rms_norm_eps
        self._input_norm = RMSNorm(build, f"{name}.input_layernorm", size=size, eps=eps)
        self._attention = Attention(config, traits, build, layer=layer, rotary=rotary)
        self._mlp_norm = RMSNorm(build, f"{name}.post_attention_layernorm", size=size, eps=eps)
        self._mlp = GatedMLP(
            build,
            f"{name}.mlp",
            hidden_size=size,
            intermediate_size=config.intermediate_size,
            has_bias=traits.has_mlp_bias,
        )

    def __call__(self, x: Tensor, factors: tuple[Tensor, Tensor], attention: AttentionStep) -> Tensor:
        x = x + self._attention(self._input_norm(x), factors, attention)
        return x + self._mlp(self._mlp_norm(x))

    def fused(self) -> FusedLayer | None:
        """What our kernels compute this layer from; None where a product is not theirs."""
        attention, mlp = self._attention, self._mlp
        linears = (attention.qkv, attention.output, mlp.gate_up, mlp.down)
        products = [linear.product for linear in linears if isinstance(linear.product, KernelProduct)]
        if len(products) < len(linears):
            return None
        qkv, output, gate_up, down = products
        norms = attention.norms
        return FusedLayer(
            qkv=qkv,
            output=output,
            gate_up=gate_up,
            down=down,
            attention_norm=self._input_norm.weight,
            mlp_norm=self._mlp_norm.weight,
            head_norms=None if norms is None else (norms[0].weight, norms[1].weight),
        )


class Decoder:
    """Embedding, layers, norm, head."""

    def __init__(
        self,
        config: ModelConfig,
        traits: DecoderTraits,
        build: ModelBuild,
    ) -> None:
        sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
        is_tied = config.tie_word_embeddings
        self._head = Head(build, "model.embed_tokens" if is_tied else "lm_head", **sizes)
        self._embedding = None if is_tied else Embedding(build, "model.embed_tokens", **sizes)
        self._rotary = RotaryEmbedding(
            config.rope,
            head_dim=config.head_dim,
            max_positions=config.max_model_len,
            device=build.device,
            dtype=build.dtype,
        )
        self._layers = [
            DecoderLayer(config, traits, build, layer=layer, rotary=self._rotary) for layer in range(config.num_layers)
        ]
        self._norm = RMSNorm(build, "model.norm", size=config.hidden_size, eps=config.rms_norm_eps)
        self._adapters = build.adapters
        self._fused = self._fuse(config, build)

    def forward(self, batch: ForwardBatch) -> Tensor:
        is_adapted = self._adapters is not None and self._adapters.is_used
        if self._fused is not None and isinstance(batch.attention, KernelAttention) and not is_adapted:
            return self._fused.forward(batch.token_ids, batch.attention, batch.output_rows)
        x = self._head.rows(batch.token_ids) if self._embedding is None else self._embedding(batch.token_ids)
        factors = self._rotary.at(batch.positions)
        for layer in self._layers:
            x = layer(x, factors, batch.attention)
        if batch.output_rows is not None:
            x = x[batch.output_rows]
        return self._norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def _fuse(self, config: ModelConfig, build: ModelBuild) -> FusedDecoder | None:
        """None where a layer is not all our kernels', or its results are added up between its products."""
        layers = [fused for layer in self._layers if (fused := layer.fused()) is not None]
        head = self._head.product
        if len(layers) < len(self._layers) or not isinstance(head, KernelProduct) or build.parallel is not None:
            return None
        return FusedDecoder(
            layers,
            head=head,
            embedding=None if self._embedding is None else self._embedding.weight,
            final_norm=self._norm.weight,
            rope=(self._rotary.cos, self._rotary.sin),
            eps=config.rms_norm_eps,
            dtype=build.dtype,
        )
