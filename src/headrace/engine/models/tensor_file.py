"""One safetensors file, memory-mapped: its tensors are views of the page cache, and nothing is read before it is used.

A file is eight bytes of length, a JSON header of that length, then the tensors' bytes:
https://github.com/huggingface/safetensors. Read here rather than by that library so that pages can be given back.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import torch
from torch import Tensor

from headrace.errors import SettingsError

_MAX_HEADER_BYTES = 100_000_000

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)


class _Entry(msgspec.Struct, frozen=True):
    """One tensor in the header; the offsets count from its end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def num_values(self) -> int:
        num_values = 1
        for size in self.shape:
            num_values *= size
        return num_values


class TensorFile:
    """The tensors of one file by name. Raises SettingsError for a file that cannot be used.

    A tensor must not be written to: `release_pages` would lose that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map, self._entries, self._data_start = _open(path)

    def __repr__(self) -> str:
        return f"TensorFile({str(self._path)!r}, {len(self._entries)} tensors)"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def tensor(self, name: str) -> Tensor:
        """A view of the tensor `name`, which keeps the mapping alive. Raises SettingsError if it is not there."""
        entry = self._entries.get(name)
        if entry is None:
            raise _unusable(self._path, f"it has no tensor {name}")
        if entry.dtype not in _DTYPES:
            raise _unusable(self._path, f"{name} has the type {entry.dtype}; supported: {', '.join(_DTYPES)}")
        start, end = entry.data_offsets
        dtype = _DTYPES[entry.dtype]
        if not 0 <= start <= end <= len(self._map) - self._data_start:
            raise _unusable(self._path, f"{name} lies outside of the file, which is cut off")
        if entry.num_values * dtype.itemsize != end - start or min(entry.shape, default=0) < 0:
            raise _unusable(self._path, f"{name} has {end - start} bytes, which is not what its shape needs")
        if end == start:
            return torch.empty(entry.shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=entry.num_values, offset=self._data_start + start)
        return flat.view(entry.shape)

    def release_pages(self) -> None:
        """Give the file's pages back to the system; those of a tensor that is used again come from its page cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _open(path: Path) -> tuple[mmap.mmap, dict[str, _Entry], int]:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable in form, which torch asks for
        (header_size,) = struct.unpack_from("<Q", mapped)
        if header_size > min(_MAX_HEADER_BYTES, len(mapped) - 8):
            raise _unusable(path, f"its header would be {header_size} bytes long")
        header = msgspec.json.decode(mapped[8 : 8 + header_size], type=dict[str, msgspec.Raw])
        entries = {
            name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items() if name != "__metadata__"
        }
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    except (ValueError, struct.error) as error:  # an empty file, and JSON that is none of this
        raise _unusable(path, str(error)) from error
    return mapped, entries, 8 + header_size


def _unusable(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"cannot read {path}: {reason}", param="model")
