"""What a PEFT directory says of its LoRA adapter (adapter_config.json), checked. Knows no tensors.

What would change the result and is not built is refused by name; fields that only matter in training are passed over.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from headrace.engine.lora.name_patterns import matches
from headrace.errors import InvalidRequestError, UnsupportedError

ADAPTED_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a decoder that an adapter may change; "all-linear" means them."""

_UNBUILT_TARGETS = ("embed_tokens", "lm_head")

_FAITHFUL_INITS: tuple[bool | str | None, ...] = (None, True, False, "gaussian", "orthogonal", "eva")
"""Ways to begin training that leave the model's own weights alone; others (pissa, olora, ...) change them too."""

_MUST_BE_UNSET = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
)


class _PeftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of adapter_config.json that are read, under their own names."""

    peft_type: str = "LORA"
    r: int
    lora_alpha: float
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True


Found: TypeAlias = Mapping[str, frozenset[str]]
"""Of each expression the layers that it matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """What the config says of one layer that the adapter changes."""

    rank: int
    scaling: float
    """The factor of the layer's low-rank product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Rank and scaling of each layer that the adapter may change, by the layer's name in the trained model."""

    rank: int
    alpha: float
    use_rslora: bool
    targets: tuple[str, ...] | str
    """Names or ends of names, or one regular expression for whole names."""
    excluded: tuple[str, ...] | str
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    @property
    def max_rank(self) -> int:
        return max((self.rank, *self.rank_pattern.values()))

    def parts(self, layers: Iterable[str]) -> dict[str, LayerPart]:
        """What it says of each of `layers` that it may change (blocking, 5 s at most).

        Raises InvalidRequestError for expressions that take longer, and re.error for what is none.
        """
        names = list(layers)
        found = matches(self._expressions(), names)
        targets = [
            name for name in names if _names(self.targets, name, found) and not _names(self.excluded, name, found)
        ]
        return {name: self._part(name, found) for name in targets}

    def _expressions(self) -> Iterable[str]:
        yield from (each for each in (self.targets, self.excluded) if isinstance(each, str))
        yield from map(_at_end, (*self.rank_pattern, *self.alpha_pattern))

    def _part(self, layer: str, found: Found) -> LayerPart:
        rank = int(_of_pattern(self.rank_pattern, layer, found, default=self.rank))
        alpha = _of_pattern(self.alpha_pattern, layer, found, default=self.alpha)
        return LayerPart(rank=rank, scaling=alpha / math.sqrt(rank) if self.use_rslora else alpha / rank)


def read_adapter_config(directory: Path, *, max_rank: int) -> AdapterConfig:
    """Read `directory` (blocking). Raises InvalidRequestError, saying what is wrong, for an adapter of no use here."""
    path = directory / "adapter_config.json"
    try:
        data = path.read_bytes()
        config = msgspec.json.decode(data, type=_PeftConfig)
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise _unusable(f"no LoRA adapter at {directory}: cannot read adapter_config.json: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise _unusable(f"cannot use {path}: {error}") from error
    _refuse_unbuilt(config, fields, path)
    adapter = AdapterConfig(
        rank=config.r,
        alpha=config.lora_alpha,
        use_rslora=config.use_rslora,
        targets=_targets(config.target_modules, path),
        excluded=_as_names(config.exclude_modules),
        rank_pattern=config.rank_pattern,
        alpha_pattern=config.alpha_pattern,
    )
    if min((adapter.rank, *adapter.rank_pattern.values())) < 1:
        raise _unusable(f"{path} has a rank (r or rank_pattern) below 1")
    if adapter.max_rank > max_rank:
        raise _unusable(
            f"the adapter at {directory} has rank {adapter.max_rank}; max_lora_rank is {max_rank}, raise it"
        )
    return adapter


def _refuse_unbuilt(config: _PeftConfig, fields: Mapping[str, msgspec.Raw], path: Path) -> None:
    if config.peft_type.upper() != "LORA":
        raise _unbuilt(f"{path} has peft_type={config.peft_type!r}; only LORA is built")
    if config.bias != "none":
        raise _unbuilt(f"{path} has bias={config.bias!r}, which is not built; only 'none' is")
    if config.init_lora_weights not in _FAITHFUL_INITS:
        raise _unbuilt(
            f"{path} has init_lora_weights={config.init_lora_weights!r}, which changes the model's own weights; "
            "save the adapter with PEFT's path_initial_model_for_weight_conversion"
        )
    for name in _MUST_BE_UNSET:
        if name in fields and msgspec.json.decode(fields[name]):
            raise _unbuilt(f"{path} uses {name}, which is not built")
    unbuilt = [name for name in _as_names(config.target_modules) if name.rpartition(".")[2] in _UNBUILT_TARGETS]
    if unbuilt and not isinstance(config.target_modules, str):
        raise _unbuilt(f"{path} targets {unbuilt[0]}, which is not built; built: {', '.join(ADAPTED_LAYERS)}")


def _targets(target_modules: list[str] | str | None, path: Path) -> tuple[str, ...] | str:
    if target_modules == "all-linear":
        return ADAPTED_LAYERS
    if not target_modules:
        raise _unusable(f"{path} names no target_modules")
    if isinstance(target_modules, str):
        try:
            re.compile(target_modules)
        except re.error as error:
            message = f"target_modules of {path} is no regular expression: {target_modules!r} ({error})"
            raise _unusable(message) from error
    return _as_names(target_modules)


def _as_names(names: list[str] | str | None) -> tuple[str, ...] | str:
    return names if isinstance(names, str) else tuple(names or ())


def _names(names: tuple[str, ...] | str, layer: str, found: Found) -> bool:
    if isinstance(names, str):
        return layer in found[names]
    return any(layer == name or layer.endswith(f".{name}") for name in names)


def _of_pattern(pattern: Mapping[str, int] | Mapping[str, float], layer: str, found: Found, *, default: float) -> float:
    """PEFT's rule: the first pattern that matches the end of the name, after a dot or from its start."""
    for expression, value in pattern.items():
        if layer in found[_at_end(expression)]:
            return value
    return default


def _at_end(expression: str) -> str:
    return rf"(.*\.)?({expression})"


def _unusable(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="lora_path")


def _unbuilt(message: str) -> UnsupportedError:
    return UnsupportedError(message, param="lora_path")
