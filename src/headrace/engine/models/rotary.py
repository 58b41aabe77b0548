"""Rotary position embedding in the half-rotation layout of Hugging Face's Llama: pairs are (i, i + D/2)."""

import math

import torch
from torch import Tensor

from headrace.engine.model_config import RopeConfig


class RotaryEmbedding:
    """Rotates queries and keys by angles that are tabled for every position up to `max_positions`.

    x * cos + swap_halves(x) * sin, with the sign of the rotation kept in the sine's first half.
    """

    __slots__ = ("_dtype", "_half", "cos", "sin")

    def __init__(
        self, config: RopeConfig, *, head_dim: int, max_positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(config, head_dim))
        self._half = head_dim // 2
        self._dtype = dtype
        self.cos = angles.cos().mul_(config.attention_factor).to(device)
        self.sin = angles.sin().mul_(config.attention_factor).to(device)
        """Both [positions, D / 2] float32."""

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of a step's tokens, for `rotate`: two of [T, 1, D]."""
        cos, sin = self.cos[positions].to(self._dtype), self.sin[positions].to(self._dtype)
        return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)

    def rotate(self, x: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
        """`x` [T, heads, D] turned to its tokens' positions."""
        cos, sin = factors
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair, [D / 2], after the scaling that `config` names."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        return _llama3(frequencies, config)
    if config.kind == "yarn":
        return _yarn(frequencies, config, head_dim)
    return frequencies


def _llama3(frequencies: Tensor, config: RopeConfig) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = config.original_max_position / wavelengths
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / config.factor + blend * frequencies


def _yarn(frequencies: Tensor, config: RopeConfig, head_dim: int) -> Tensor:
    """YaRN: pairs that turn more than `beta_fast` times in the original context are kept, those that turn less than
    `beta_slow` times are stretched by `factor`, those between blended by their place."""

    def pair_that_turns(times: float) -> float:
        waves = config.original_max_position / (times * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(config.theta))

    first = max(math.floor(pair_that_turns(config.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(config.beta_slow)), head_dim - 1)
    places = torch.arange(head_dim // 2, dtype=torch.float32)
    stretched = ((places - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
    return frequencies / config.factor * stretched + frequencies * (1 - stretched)
