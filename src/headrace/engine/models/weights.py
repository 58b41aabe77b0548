"""Where a model's tensors come from: safetensors files, memory-mapped, under Hugging Face's names; or random ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from headrace.engine.models.tensor_file import TensorFile
from headrace.errors import SettingsError

_SINGLE_NAME = "model.safetensors"
_INDEX_NAME = "model.safetensors.index.json"
_PREFIX = "model."
_RELEASE_EVERY_BYTES = 32 * 2**20


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is, and its name there."""

    path: Path
    stored_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """Of a tensor of one or two dimensions: the indices `span` of dimension `dim`."""

    dim: int
    span: range

    def __post_init__(self) -> None:
        assert self.dim in (0, 1), "tensors are split by outputs or by inputs"

    @property
    def index(self) -> tuple[slice, ...]:
        span = slice(self.span.start, self.span.stop)
        return (span,) if self.dim == 0 else (slice(None), span)


class WeightSource(Protocol):
    """Hands out each tensor once, on the model's device and in its dtype."""

    def take(self, name: str, *shape: int, part: TensorPart | None = None) -> Tensor:
        """The tensor `name`, or only `part` of it. Raises SettingsError if it is missing or has another shape."""
        ...


class SafetensorsWeights:
    """The tensors of a model directory: shards with an index, `model.safetensors`, or any `*.safetensors`.

    On a CPU a tensor is a view of its mapped file where its type is the wanted one. Files that come without the prefix
    "model.", as those of embedding models do, are read all the same.
    """

    def __init__(self, directory: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._directory = directory
        self._device = device
        self._dtype = dtype
        self._open: dict[Path, TensorFile] = {}
        self._place_of = _with_prefix(self._places())
        self._num_unreleased_bytes = 0

    def __repr__(self) -> str:
        return f"SafetensorsWeights({str(self._directory)!r}, {len(self._place_of)} tensors left)"

    def take(self, name: str, *shape: int, part: TensorPart | None = None) -> Tensor:
        place = self._place_of.pop(name, None)
        if place is None:
            raise SettingsError(f"the model at {self._directory} has no tensor {name}", param="model")
        stored = self._file(place.path).tensor(place.stored_name)
        if tuple(stored.shape) != shape:
            message = f"tensor {name} of {place.path} has shape {tuple(stored.shape)}, config.json asks for {shape}"
            raise SettingsError(message, param="model")
        if part is not None:
            stored = stored[part.index]  # nothing else is read
        self._note(stored)
        return stored.to(device=self._device, dtype=self._dtype).contiguous()

    def untaken(self) -> tuple[str, ...]:
        """Names of tensors that no part of the model asked for."""
        return tuple(sorted(self._place_of))

    def release_pages(self) -> None:
        """Give back the pages of all files: layers that made their own copy of a tensor do not need them."""
        for file in self._open.values():
            file.release_pages()
        self._num_unreleased_bytes = 0

    def _note(self, tensor: Tensor) -> None:
        """Release now and then, so that while a model loads its weights are not resident twice."""
        self._num_unreleased_bytes += tensor.nbytes
        if self._num_unreleased_bytes > _RELEASE_EVERY_BYTES:
            self.release_pages()

    def _places(self) -> dict[str, _Place]:
        """The index decides where there is one, since a directory may hold duplicates."""
        index = self._directory / _INDEX_NAME
        if index.exists():
            return {name: _Place(self._directory / file, name) for name, file in _read_index(index).items()}
        single = self._directory / _SINGLE_NAME
        paths = [single] if single.exists() else sorted(self._directory.glob("*.safetensors"))
        if not paths:
            message = (
                f"no *.safetensors in {self._directory}; convert the weights, or use load_format=dummy to run without"
            )
            raise SettingsError(message, param="model")
        return {name: _Place(path, name) for path in paths for name in self._file(path).names}

    def _file(self, path: Path) -> TensorFile:
        if path not in self._open:
            self._open[path] = TensorFile(path)
        return self._open[path]


class DummyWeights:
    """Random tensors, scaled so that activations keep their size."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, name: str, *shape: int, part: TensorPart | None = None) -> Tensor:
        """The whole tensor is drawn also for a part of it, so that all workers of a group hold parts of one model."""
        if name.endswith("norm.weight"):
            tensor = torch.ones(shape)
        else:
            tensor = torch.randn(shape, generator=self._generator) * shape[-1] ** -0.5
        if part is not None:
            tensor = tensor[part.index].contiguous()
        return tensor.to(device=self._device, dtype=self._dtype)


def _read_index(path: Path) -> dict[str, str]:
    """The file's name of each tensor."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", param="model") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"cannot use {path}: {error}", param="model") from error


def _with_prefix(places: dict[str, _Place]) -> dict[str, _Place]:
    if any(name.startswith(_PREFIX) for name in places):
        return places
    return {name if name.startswith("lm_head.") else _PREFIX + name: place for name, place in places.items()}
