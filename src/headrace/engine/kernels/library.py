"""Finds and opens the compiled kernels (csrc/), which are absent where no compiler built them or the CPU lacks AVX2.

One `CpuKernels` is one set of threads and scratch memory: its calls come one at a time, and release the GIL.
"""

import ctypes
import importlib.machinery
import logging
import weakref
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.engine.kernels.memory import Arena
from headrace.engine.kernels.structures import API_VERSION, SIGNATURES, AttentionStructure, Isa, ProductStructure

logger = logging.getLogger(__name__)

_NAME = "_kernels"


class CpuKernels:
    """The kernels of one instruction set, on `num_threads` threads, which end with this object."""

    def __init__(self, library: ctypes.CDLL, *, isa: Isa, num_threads: int) -> None:
        self.isa = isa
        self.num_threads = num_threads
        self.library = library
        self.context = ctypes.c_void_p(library.hr_open(isa, num_threads))
        if not self.context:
            raise MemoryError(f"the {isa.name} kernels cannot be opened")
        self.panel_width: int = library.hr_panel_width(self.context)
        weakref.finalize(self, library.hr_close, self.context)

    def __repr__(self) -> str:
        return f"CpuKernels({self.isa.name}, {self.num_threads} threads)"

    def pack(self, weight: Tensor, arena: Arena) -> Tensor:
        """Rows [N, K] of float32, bfloat16 or int8 as panels, flat; K x item size must be a multiple of 4 bytes."""
        weight = weight.contiguous()
        num_rows, row_bytes = weight.shape[0], weight.shape[1] * weight.itemsize
        packed = arena.take(self.padded(num_rows) * row_bytes)
        library, context = self.library, self.context
        check(library.hr_pack(context, weight.data_ptr(), num_rows, row_bytes // 4, packed.data_ptr()))
        return packed

    def padded(self, num_rows: int) -> int:
        """Rows of a packed weight of `num_rows`: whole vectors."""
        lanes = 16 if self.isa is Isa.AVX512 else 8
        return -(-num_rows // lanes) * lanes

    def linear(self, product: ProductStructure, x: Tensor) -> Tensor:
        """`x` [T, K] of float32 or bfloat16 times the product's weight: [T, N] float32."""
        x = x.contiguous()
        out = torch.empty(len(x), product.n, dtype=torch.float32)
        check(
            self.library.hr_linear(
                self.context, ctypes.byref(product), x.data_ptr(), _kind_of(x), len(x), out.data_ptr()
            )
        )
        return out

    def rows(self, product: ProductStructure, row_ids: Tensor) -> Tensor:
        """These rows [R] int64 of the product's weight: [R, K] float32."""
        row_ids = row_ids.contiguous()
        out = torch.empty(len(row_ids), product.k, dtype=torch.float32)
        check(
            self.library.hr_rows(self.context, ctypes.byref(product), row_ids.data_ptr(), len(row_ids), out.data_ptr())
        )
        return out

    def store(self, shape: AttentionStructure, cache: Tensor, spans: Tensor, k_tkd: Tensor, v_tkd: Tensor) -> None:
        """Write keys and values [T, heads, D] to one layer's cache, at the places of `spans`."""
        keys, values = k_tkd.float().contiguous(), v_tkd.float().contiguous()
        check(
            self.library.hr_store(
                self.context,
                ctypes.byref(shape),
                cache.data_ptr(),
                spans.data_ptr(),
                len(spans),
                keys.data_ptr(),
                values.data_ptr(),
            )
        )

    def attend(
        self, shape: AttentionStructure, cache: Tensor, spans: Tensor, q_thd: Tensor, *, window: int | None
    ) -> Tensor:
        """Attention of the spans' queries [T, heads, D] over what is stored: [T, heads x D] float32."""
        queries = q_thd.float().contiguous()
        out = torch.empty(len(queries), shape.num_heads * shape.head_dim, dtype=torch.float32)
        check(
            self.library.hr_attend(
                self.context,
                ctypes.byref(shape),
                cache.data_ptr(),
                window or 0,
                spans.data_ptr(),
                len(spans),
                queries.data_ptr(),
                out.data_ptr(),
            )
        )
        return out


def open_kernels(*, num_threads: int, isa: Isa | None = None) -> CpuKernels | None:
    """The best kernels that this CPU runs, or those of `isa`; None where there are none."""
    library = _library()
    best = Isa.NONE if library is None else Isa(library.hr_best_isa())
    chosen = best if isa is None else isa
    if library is None or chosen is Isa.NONE or chosen > best:
        logger.debug("no CPU kernels: %s", "not compiled" if library is None else "the CPU lacks AVX2")
        return None
    kernels = CpuKernels(library, isa=chosen, num_threads=num_threads)
    logger.debug("CPU kernels: %r", kernels)
    return kernels


def check(status: int) -> None:
    """Raise MemoryError for a call that found too little memory, the only way in which one can fail."""
    if status != 0:
        raise MemoryError("the CPU kernels found no memory for their buffers")


def _kind_of(x: Tensor) -> int:
    assert x.dtype in (torch.float32, torch.bfloat16), f"kernels take float32 or bfloat16, not {x.dtype}"
    return 0 if x.dtype == torch.float32 else 1


@cache
def _library() -> ctypes.CDLL | None:
    path = _path()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        version = library.hr_api_version()
    except (OSError, AttributeError) as error:
        logger.warning("the CPU kernels at %s cannot be loaded, plain torch is used: %s", path, error)
        return None
    if version != API_VERSION:
        logger.warning("the CPU kernels at %s are of another version; install again to build them", path)
        return None
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _path() -> Path | None:
    """Where the build put the library: beside its sources, under the name of an extension module."""
    directory = Path(__file__).parent / "csrc"
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if (path := directory / (_NAME + suffix)).exists():
            return path
    return None
