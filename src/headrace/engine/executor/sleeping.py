"""What sleep needs of the machine: memory given back for real, and weight files that are still the same on waking."""

import ctypes
import gc
import sys
from pathlib import Path
from typing import TypeAlias

import torch

from headrace.errors import EngineError

FileSignature: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change and inode of each weight file."""


def file_signature(directory: Path) -> FileSignature:
    """Of a model directory's weights; empty where it has none, as for random ones."""
    files = [(path, path.stat()) for path in sorted(directory.glob("*.safetensors"))]
    return tuple((path.name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in files)


def check_unchanged(directory: Path, *, before: FileSignature) -> None:
    """Raises EngineError if the weights have changed since `before`."""
    if file_signature(directory) != before:
        message = (
            f"the weights in {directory} have changed since the engine fell asleep at level 1, which promises the same "
            "ones; sleep at level 2 to wake up with new ones"
        )
        raise EngineError(message)


def release_memory(device: torch.device) -> None:
    """Give what Python, torch and the C library hold in reserve back to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        trim = getattr(
            ctypes.CDLL(None), "malloc_trim", None
        )  # glibc has it; where it is missing, pages come back late
        if trim is not None:
            trim(0)
