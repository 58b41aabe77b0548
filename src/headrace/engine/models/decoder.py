"""The decoder that the Llama family shares; a family's own module says where it differs (`DecoderTraits`).

Suffixes of tensors: t tokens, h query heads, k key-value heads, d head size.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.engine.model_config import ModelConfig
from headrace.engine.models.build import ModelBuild
from headrace.engine.models.forward_batch import AttentionStep, ForwardBatch
from headrace.engine.models.layers import Embedding, GatedMLP, Linear, RMSNorm
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
        self._qk_v = [config.num_heads + config.num_kv_heads, config.num_kv_heads]
        self._q_k = [config.num_heads, config.num_kv_heads]
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._qkv = Linear(
            build,
            f"{name}.q_proj",
            f"{name}.k_proj",
            f"{name}.v_proj",
            input_size=config.hidden_size,
            output_sizes=(query_size, kv_size, kv_size),
            has_bias=traits.has_qkv_bias,
        )
        self._output = Linear(
            build,
            f"{name}.o_proj",
            input_size=query_size,
            output_sizes=(config.hidden_size,),
            has_bias=traits.has_output_bias,
        )
        self._norms: tuple[RMSNorm, RMSNorm] | None = None
        if traits.has_qk_norm:
            self._norms = (
                RMSNorm(build, f"{name}.q_norm", size=config.head_dim, eps=config.rms_norm_eps),
                RMSNorm(build, f"{name}.k_norm", size=config.head_dim, eps=config.rms_norm_eps),
            )

    def __call__(self, x: Tensor, factors: tuple[Tensor, Tensor], attention: AttentionStep) -> Tensor:
        heads = self._qkv(x).view(len(x), -1, self._head_dim)
        qk, v_tkd = torch.split(heads, self._qk_v, dim=1)
        if self._norms is not None:
            qk = self._normalize(qk, self._norms)
        q_thd, k_tkd = torch.split(self._rotary.rotate(qk, factors), self._q_k, dim=1)
        return self._output(attention.attend(self._layer, q_thd, k_tkd, v_tkd))

    def _normalize(self, qk: Tensor, norms: tuple[RMSNorm, RMSNorm]) -> Tensor:
        q_thd, k_tkd = torch.split(qk, self._q_k, dim=1)
        return torch.cat((norms[0](q_thd), norms[1](k_tkd)), dim=1)


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


class Decoder:
    """Embedding, layers, norm, head."""

    def __init__(
        self,
        config: ModelConfig,
        traits: DecoderTraits,
        build: ModelBuild,
    ) -> None:
        size = config.hidden_size
        self._embedding = Embedding(build, "model.embed_tokens", vocab_size=config.vocab_size, hidden_size=size)
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
        self._norm = RMSNorm(build, "model.norm", size=size, eps=config.rms_norm_eps)
        self._head = self._embedding
        if not config.tie_word_embeddings:
            self._head = Embedding(build, "lm_head", vocab_size=config.vocab_size, hidden_size=size)

    def forward(self, batch: ForwardBatch) -> Tensor:
        x = self._embedding(batch.token_ids)
        factors = self._rotary.at(batch.positions)
        for layer in self._layers:
            x = layer(x, factors, batch.attention)
        if batch.output_rows is not None:
            x = x[batch.output_rows]
        return self._norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head.logits(hidden)
