"""What the engine knows of a model before it loads a weight: read from its directory's JSON files, checked, frozen.

What a checkpoint asks for and this version does not build is refused here by name. Imports no torch.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from headrace.engine.models.architectures import ARCHITECTURES
from headrace.engine.pooling_config import read_default_pooling
from headrace.engine.pooling_params import Pooling
from headrace.errors import SettingsError

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

DataType: TypeAlias = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding; the fields after `kind` belong to the scalings that use them."""

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    """What yarn multiplies the rotation's cosines and sines by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What generation_config.json recommends; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """For requests that do not say how long their answer may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model as served: its place, its limits and its shapes."""

    model: str
    """The directory, absolute."""
    tokenizer: str
    """A directory or a tokenizer.json file, absolute."""
    served_model_name: str
    max_model_len: int
    """Most tokens of a request, prompt and answer together."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    architecture: str
    checkpoint_dtype: DataType
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    default_pooling: Pooling = "last"
    """How embeddings are pooled unless a request says otherwise."""
    can_generate: bool = True
    """False for a checkpoint without a language model's head: it only embeds."""
    layer_windows: tuple[int | None, ...] = ()
    """For each layer how many tokens a token attends to, itself among them; None, and layers not named: all."""

    def window_of(self, layer: int) -> int | None:
        """See `layer_windows`."""
        return self.layer_windows[layer] if layer < len(self.layer_windows) else None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds for one token: keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def load_model_config(
    model: str,
    *,
    tokenizer: str | None = None,
    served_model_name: str | None = None,
    max_model_len: int | None = None,
    takes_any: bool = False,
) -> ModelConfig:
    """Read the model directory `model` (blocking file reads). `takes_any`: another engine than ours runs the model.

    Raises SettingsError, naming the setting, if the directory is no model, if its architecture or a feature of it is
    not built, or if `max_model_len` is more than the model was made for.
    """
    directory = Path(model).expanduser().resolve()
    checkpoint = _read(directory, "config.json", _Checkpoint)
    generation = _read(directory, "generation_config.json", _Generation, default=_Generation())
    if takes_any:
        architecture, rope = next(iter(checkpoint.architectures), "unknown"), RopeConfig(theta=checkpoint.rope_theta)
    else:
        architecture = _supported_architecture(checkpoint, directory)
        _refuse_unbuilt(checkpoint, directory)
        rope = _rope_config(checkpoint, directory)
    can_generate = architecture.endswith("ForCausalLM")
    return ModelConfig(
        model=str(directory),
        tokenizer=str(_tokenizer_path(tokenizer, directory)),
        served_model_name=served_model_name or directory.name,
        max_model_len=_resolve_max_model_len(checkpoint, rope, max_model_len, directory),
        vocab_size=checkpoint.vocab_size,
        eos_token_ids=_as_tuple(generation.eos_token_id) or _as_tuple(checkpoint.eos_token_id),
        sampling_defaults=SamplingDefaults(
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            min_p=generation.min_p,
            max_tokens=generation.max_new_tokens,
            repetition_penalty=generation.repetition_penalty,
        ),
        architecture=architecture,
        checkpoint_dtype=_checkpoint_dtype(checkpoint, directory),
        hidden_size=checkpoint.hidden_size,
        intermediate_size=checkpoint.intermediate_size,
        num_layers=checkpoint.num_hidden_layers,
        num_heads=checkpoint.num_attention_heads,
        num_kv_heads=checkpoint.num_key_value_heads or checkpoint.num_attention_heads,
        head_dim=checkpoint.head_dim or checkpoint.hidden_size // checkpoint.num_attention_heads,
        rms_norm_eps=checkpoint.rms_norm_eps,
        rope=rope,
        tie_word_embeddings=checkpoint.tie_word_embeddings or not can_generate,  # without a head nothing asks for it
        can_generate=can_generate,
        attention_bias=checkpoint.attention_bias,
        mlp_bias=checkpoint.mlp_bias,
        layer_windows=_layer_windows(checkpoint, architecture),
        default_pooling=read_default_pooling(directory),
    )


class _Rope(msgspec.Struct, frozen=True):
    """`rope_scaling`, or `rope_parameters` of newer checkpoints."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that are read, under their own names."""

    architectures: list[str] = []
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    quantization_config: dict[str, msgspec.Raw] | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


class _Generation(msgspec.Struct, frozen=True):
    """The fields of generation_config.json that are read."""

    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def _read(directory: Path, name: str, type_: type[_StructT], *, default: _StructT | None = None) -> _StructT:
    path = directory / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError:
        if default is not None:
            return default
        message = f"no model at {directory}: {name} is missing; give a directory in Hugging Face's layout"
        raise SettingsError(message, param="model") from None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", param="model") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"cannot use {path}: {error}", param="model") from error


def _supported_architecture(checkpoint: _Checkpoint, directory: Path) -> str:
    for name in checkpoint.architectures:
        if name in ARCHITECTURES:
            return name
    found = ", ".join(checkpoint.architectures) or "none"
    message = f"{directory} has the architecture {found}, which is not built; supported: {', '.join(ARCHITECTURES)}"
    raise SettingsError(message, param="model")


def _refuse_unbuilt(checkpoint: _Checkpoint, directory: Path) -> None:
    if checkpoint.hidden_act != "silu":
        message = f"{directory} uses hidden_act={checkpoint.hidden_act!r}, which is not built; only 'silu' is"
        raise SettingsError(message, param="model")
    if checkpoint.quantization_config is not None:
        message = f"{directory} is quantized (quantization_config), which is not built; use its unquantized weights"
        raise SettingsError(message, param="model")


def _resolve_max_model_len(checkpoint: _Checkpoint, rope: RopeConfig, wanted: int | None, directory: Path) -> int:
    """The length asked for, or as many positions as the model was made for."""
    made_for = checkpoint.max_position_embeddings
    if rope.kind == "yarn":
        made_for = max(made_for, int(rope.factor * rope.original_max_position))
    # Of linear checkpoints some count the positions before the stretching, some those after it: more must be asked for.
    limit = int(made_for * rope.factor) if rope.kind == "linear" else made_for
    if wanted is not None and wanted > limit:
        message = f"max_model_len is {wanted}, but the model at {directory} does at most {limit} tokens; lower it"
        raise SettingsError(message, param="max_model_len")
    return wanted if wanted is not None else made_for


def _layer_windows(checkpoint: _Checkpoint, architecture: str) -> tuple[int | None, ...]:
    """Mistral's configs have no switch and mean all layers; Qwen's are off by default and spare the first layers."""
    is_mistral = architecture.startswith("Mistral")
    has_window = is_mistral if checkpoint.use_sliding_window is None else checkpoint.use_sliding_window
    window = checkpoint.sliding_window
    if not has_window or window is None:
        return ()
    num_layers = checkpoint.num_hidden_layers
    if checkpoint.layer_types is not None:
        types = checkpoint.layer_types[:num_layers]
    else:
        num_full = 0 if is_mistral else min(checkpoint.max_window_layers, num_layers)
        types = ["full_attention"] * num_full + ["sliding_attention"] * (num_layers - num_full)
    return tuple(window if type_ == "sliding_attention" else None for type_ in types)


def _rope_config(checkpoint: _Checkpoint, directory: Path) -> RopeConfig:
    rope = checkpoint.rope_parameters or checkpoint.rope_scaling or _Rope()
    kind = rope.rope_type or rope.type or "default"
    theta = rope.rope_theta or checkpoint.rope_theta
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=rope.factor or 1.0)
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=rope.factor or 1.0,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position=rope.original_max_position_embeddings or 8192,
        )
    if kind == "yarn":
        return _yarn_config(checkpoint, rope, theta=theta, directory=directory)
    message = (
        f"{directory} scales its positions by rope_type={kind!r}, which is not built; built: default, linear, llama3, "
        "yarn"
    )
    raise SettingsError(message, param="model")


def _yarn_config(checkpoint: _Checkpoint, rope: _Rope, *, theta: float, directory: Path) -> RopeConfig:
    if not rope.truncate:
        message = f"{directory} has yarn positions with truncate=false, which is not built; only true is"
        raise SettingsError(message, param="model")
    original = rope.original_max_position_embeddings or checkpoint.max_position_embeddings
    factor = rope.factor or checkpoint.max_position_embeddings / original
    attention_factor = rope.attention_factor
    if attention_factor is None and rope.mscale and rope.mscale_all_dim:
        attention_factor = _yarn_scale(factor, rope.mscale) / _yarn_scale(factor, rope.mscale_all_dim)
    elif attention_factor is None:
        attention_factor = _yarn_scale(factor, 1.0)
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        attention_factor=attention_factor,
    )


def _yarn_scale(factor: float, weight: float) -> float:
    """How much sharper yarn makes attention over a context stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _checkpoint_dtype(checkpoint: _Checkpoint, directory: Path) -> DataType:
    match checkpoint.dtype or checkpoint.torch_dtype or "float32":
        case "float32":
            return "float32"
        case "float16":
            return "float16"
        case "bfloat16":
            return "bfloat16"
        case other:
            message = f"{directory} stores its weights as {other}; supported: float32, float16, bfloat16"
            raise SettingsError(message, param="model")


def _tokenizer_path(tokenizer: str | None, directory: Path) -> Path:
    if tokenizer is None:
        return directory
    path = Path(tokenizer).expanduser().resolve()
    if not path.exists():
        raise SettingsError(f"no tokenizer at {path}; give a directory or a tokenizer.json file", param="tokenizer")
    return path


def _as_tuple(token_ids: int | list[int] | None) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    return (token_ids,) if isinstance(token_ids, int) else tuple(token_ids)
