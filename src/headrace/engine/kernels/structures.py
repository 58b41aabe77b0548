"""The structures of csrc/kernels.h, field by field, and the numbers that it gives names to."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from enum import IntEnum
from typing import ClassVar

API_VERSION = 1

_Field = tuple[str, type]


class Isa(IntEnum):
    """Instruction sets that there are kernels for."""

    NONE = 0
    AVX2 = 1
    AVX512 = 2


class Kind(IntEnum):
    """Kinds of numbers."""

    F32 = 0
    BF16 = 1
    INT8 = 2
    """int8 rows with a scale each; inputs are rounded to int8 too, one scale per row."""
    INT8_WEIGHTS = 3
    """int8 rows with a scale each; inputs are rounded to 16 bits, one scale per row."""


class ProductStructure(Structure):
    _fields_: ClassVar[list[_Field]] = [
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("kind", c_int64),
    ]


class LayerStructure(Structure):
    _fields_: ClassVar[list[_Field]] = [
        ("qkv", ProductStructure),
        ("output", ProductStructure),
        ("gate_up", ProductStructure),
        ("down", ProductStructure),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cache", c_void_p),
        ("window", c_int64),
    ]


class AttentionStructure(Structure):
    _fields_: ClassVar[list[_Field]] = [
        ("kind", c_int64),
        ("block_size", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
    ]


class ModelStructure(Structure):
    _fields_: ClassVar[list[_Field]] = [
        ("attention", AttentionStructure),
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("eps", c_float),
        ("layers", POINTER(LayerStructure)),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("embedding", c_void_p),
        ("embedding_kind", c_int64),
        ("head", ProductStructure),
    ]


class StepStructure(Structure):
    _fields_: ClassVar[list[_Field]] = [
        ("num_tokens", c_int64),
        ("num_spans", c_int64),
        ("num_outputs", c_int64),
        ("token_ids", c_void_p),
        ("spans", c_void_p),
        ("output_rows", c_void_p),
        ("hidden", c_void_p),
        ("hidden_kind", c_int64),
    ]


_INT, _PTR = c_int64, c_void_p

SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "hr_api_version": (_INT, ()),
    "hr_best_isa": (_INT, ()),
    "hr_open": (_PTR, (_INT, _INT)),
    "hr_close": (None, (_PTR,)),
    "hr_panel_width": (_INT, (_PTR,)),
    "hr_pack": (ctypes.c_int, (_PTR, _PTR, _INT, _INT, _PTR)),
    "hr_linear": (ctypes.c_int, (_PTR, POINTER(ProductStructure), _PTR, _INT, _INT, _PTR)),
    "hr_rows": (ctypes.c_int, (_PTR, POINTER(ProductStructure), _PTR, _INT, _PTR)),
    "hr_store": (ctypes.c_int, (_PTR, POINTER(AttentionStructure), _PTR, _PTR, _INT, _PTR, _PTR)),
    "hr_attend": (ctypes.c_int, (_PTR, POINTER(AttentionStructure), _PTR, _INT, _PTR, _INT, _PTR, _PTR)),
    "hr_forward": (ctypes.c_int, (_PTR, POINTER(ModelStructure), POINTER(StepStructure))),
}
"""Result and arguments of each exported function."""
