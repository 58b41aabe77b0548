"""One adapter's tensors: read from a PEFT directory's adapter_model.safetensors, checked against the model's layers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headrace.engine.lora.adapter_config import read_adapter_config
from headrace.errors import InvalidRequestError

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_READ_ERRORS = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError, re.error)
"""What reading can raise for a path that is none, a config that is nested too deeply or holds a pattern that is none,
and tensors of a type that PyTorch lacks or that do not fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What an adapter adds to one linear layer: x A^T B^T, the scaling being in B already."""

    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[out, rank]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """Inputs and outputs of a linear layer of the whole model, whichever part of it this worker holds."""

    input_size: int
    output_size: int


Adapter = Mapping[str, LowRank]
"""By the layer's name in the model's own files."""


def read_adapter(
    directory: Path, *, layers: Mapping[str, LayerSize], max_rank: int, dtype: torch.dtype
) -> dict[str, LowRank]:
    """Read `directory` into host memory (blocking). Raises InvalidRequestError, saying what is wrong.

    The path comes from a request and the files from anywhere: whatever they are, the engine outlives them.
    """
    try:
        return _read(directory.expanduser(), layers=layers, max_rank=max_rank, dtype=dtype)
    except _READ_ERRORS as error:
        raise _unusable(f"cannot use the LoRA adapter at {directory}: {error}") from error


def _read(directory: Path, *, layers: Mapping[str, LayerSize], max_rank: int, dtype: torch.dtype) -> dict[str, LowRank]:
    config = read_adapter_config(directory, max_rank=max_rank)
    tensors = _read_tensors(directory)
    adapter = {}
    names = sorted({_layer_name(key, directory) for key in tensors})
    parts = config.parts(names)
    for name in names:
        layer = name if name.startswith("model.") else f"model.{name}"  # trained without the language model's head
        if layer not in layers or name not in parts:
            raise _unusable(f"the adapter at {directory} changes {name}, which is not built or not among its targets")
        a, b = (_take(tensors, f"{_PREFIX}{name}{end}", directory) for end in (_DOWN, _UP))
        _check_shapes(a, b, layers[layer], rank=parts[name].rank, name=name, directory=directory)
        adapter[layer] = _low_rank(a, b, scaling=parts[name].scaling, dtype=dtype)
    if not adapter:
        raise _unusable(f"the adapter at {directory} holds no tensors")
    return adapter


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / "adapter_model.safetensors"
    try:
        return load_file(path)
    except FileNotFoundError:
        message = f"no adapter_model.safetensors in {directory}; save the adapter in the safetensors format"
        raise _unusable(message) from None
    except (OSError, SafetensorError) as error:
        raise _unusable(f"cannot read {path}: {error}") from error


def _layer_name(key: str, directory: Path) -> str:
    """The trained model's name of the layer that a tensor belongs to."""
    for end in (_DOWN, _UP):
        if key.startswith(_PREFIX) and key.endswith(end):
            return key.removeprefix(_PREFIX).removesuffix(end)
    raise _unusable(f"the adapter at {directory} holds the tensor {key}, which is not built")


def _take(tensors: Mapping[str, Tensor], key: str, directory: Path) -> Tensor:
    if key not in tensors:
        raise _unusable(f"the adapter at {directory} has no tensor {key}")
    return tensors[key]


def _check_shapes(a: Tensor, b: Tensor, size: LayerSize, *, rank: int, name: str, directory: Path) -> None:
    expected = ((rank, size.input_size), (size.output_size, rank))
    found = (tuple(a.shape), tuple(b.shape))
    if found != expected:
        message = f"the adapter at {directory} has A, B of the shapes {found} for {name}; they must be {expected}"
        raise _unusable(message)


def _low_rank(a: Tensor, b: Tensor, *, scaling: float, dtype: torch.dtype) -> LowRank:
    # Copied: the tensors as read are a memory map of a file that may be rewritten.
    return LowRank(a=a.to(dtype, copy=True), b=(b.float() * scaling).to(dtype))


def _unusable(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="lora_path")
