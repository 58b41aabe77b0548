"""Where a model's tensors come from: safetensors files, memory-mapped, under Hugging Face's names; or random ones."""

import json
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.errors import SettingsError

_INDEX_NAME = "model.safetensors.index.json"


class WeightSource(Protocol):
    """Hands out each tensor once, on the model's device and in its dtype."""

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`. Raises SettingsError if it is missing or has another shape."""
        ...


class SafetensorsWeights:
    """The tensors of a model directory: `model.safetensors`, shards with an index, or any `*.safetensors`."""

    def __init__(self, directory: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._directory = directory
        self._device = device
        self._dtype = dtype
        self._file_of = _tensor_files(directory)
        self._open: dict[Path, safe_open] = {}

    def __repr__(self) -> str:
        return f"SafetensorsWeights({str(self._directory)!r}, {len(self._file_of)} tensors left)"

    def take(self, name: str, *shape: int) -> Tensor:
        path = self._file_of.pop(name, None)
        if path is None:
            raise SettingsError(f"the model at {self._directory} has no tensor {name}", param="model")
        tensor: Tensor = self._file(path).get_tensor(name)  # type: ignore[no-untyped-call]  # safetensors' stub
        if tuple(tensor.shape) != shape:
            message = f"tensor {name} of {path} has shape {tuple(tensor.shape)}, config.json asks for {shape}"
            raise SettingsError(message, param="model")
        return tensor.to(device=self._device, dtype=self._dtype)

    def untaken(self) -> tuple[str, ...]:
        """Names of tensors that no part of the model asked for."""
        return tuple(sorted(self._file_of))

    def _file(self, path: Path) -> safe_open:
        if path not in self._open:
            self._open[path] = _open_file(path)
        return self._open[path]


class DummyWeights:
    """Random tensors, scaled so that activations keep their size."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, name: str, *shape: int) -> Tensor:
        if name.endswith("norm.weight"):
            tensor = torch.ones(shape)
        else:
            tensor = torch.randn(shape, generator=self._generator) * shape[-1] ** -0.5
        return tensor.to(device=self._device, dtype=self._dtype)


def _tensor_files(directory: Path) -> dict[str, Path]:
    """The file of each tensor; the index decides where there is one, since a directory may hold duplicates."""
    index = directory / _INDEX_NAME
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return {name: directory / file for name, file in weight_map.items()}
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        message = f"no *.safetensors in {directory}; convert the weights, or use load_format=dummy to run without"
        raise SettingsError(message, param="model")
    return {name: path for path in paths for name in _tensor_names(path)}


def _open_file(path: Path) -> safe_open:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"cannot read {path}: {error}", param="model") from error


def _tensor_names(path: Path) -> list[str]:
    return list(_open_file(path).keys())  # type: ignore[no-untyped-call]  # safetensors' stub
