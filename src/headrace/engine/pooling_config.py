"""How a model directory says that its embeddings are made: the modules.json that sentence-transformers writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from headrace.engine.pooling_params import Pooling
from headrace.errors import SettingsError

_POOLINGS: Mapping[str, Pooling] = MappingProxyType({"cls": "cls", "mean": "mean", "lasttoken": "last"})
"""By the names in the configs."""

_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_lasttoken": "lasttoken",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
    }
)

_BUILT_MODULES = ("Transformer", "Pooling", "Normalize")


class _Module(msgspec.Struct, frozen=True):
    type: str
    path: str = ""


class _PoolingModule(msgspec.Struct, frozen=True):
    """`pooling_mode` of newer configs, or one flag for each mode."""

    pooling_mode: str | list[str] | None = None


def read_default_pooling(directory: Path) -> Pooling:
    """The pooling that the model was trained with; "last" where the directory does not say (blocking file reads).

    Raises SettingsError for one that is not built, and for layers behind it.
    """
    try:
        modules = msgspec.json.decode((directory / "modules.json").read_bytes(), type=list[_Module])
        kinds = [module.type.rpartition(".")[2] for module in modules]
        for kind in kinds:
            if kind not in _BUILT_MODULES:
                raise _unbuilt(directory, f"the layer {kind}")
        if "Pooling" not in kinds:
            return "last"
        data = (directory / modules[kinds.index("Pooling")].path / "config.json").read_bytes()
        return _pooling(_modes(data), directory)
    except FileNotFoundError:
        return "last"
    except OSError as error:
        raise SettingsError(f"cannot read the pooling of {directory}: {error.strerror}", param="model") from error
    except msgspec.DecodeError as error:
        message = f"cannot use modules.json or what it names in {directory}: {error}"
        raise SettingsError(message, param="model") from error


def _modes(data: bytes) -> Sequence[str]:
    mode = msgspec.json.decode(data, type=_PoolingModule).pooling_mode
    if mode is not None:
        return [mode] if isinstance(mode, str) else mode
    flags = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return [name for flag, name in _FLAGS.items() if flag in flags and msgspec.json.decode(flags[flag]) is True]


def _pooling(modes: Sequence[str], directory: Path) -> Pooling:
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise _unbuilt(directory, f"the pooling {'+'.join(modes) or 'none'}")
    return _POOLINGS[modes[0]]


def _unbuilt(directory: Path, what: str) -> SettingsError:
    message = f"the embeddings of {directory} need {what}, which is not built; built: {', '.join(_POOLINGS)}"
    return SettingsError(message, param="model")
