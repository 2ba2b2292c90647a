"""Elements of tensors in files: the width of each dtype, its raw NumPy dtype, and its values.

NumPy has no bfloat16 and no float8. Their bits are kept as unsigned integers (*raw* elements),
which is enough for code that only moves elements. :func:`decode` converts them to float32, which
is exact.
"""

from __future__ import annotations

import numpy as np

from ..model.arrays import AnyArray
from ..tensor_files.npy import decode_bfloat16

#: dtype -> NumPy dtype of its raw elements, little-endian.
RAW_DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2",
    "float8_e4m3fn": "|u1", "float8_e5m2": "|u1",
    "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1",
    "uint64": "<u8", "uint32": "<u4", "uint16": "<u2", "uint8": "|u1",
    "bool": "|b1", "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip

#: dtype -> bits of exponent and mantissa (OCP 8-bit floating point specification v1.0, section 5).
FLOAT8 = {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}


def get_item_size(dtype: str) -> int:
    """Return the bytes of one element. Raises KeyError for a dtype not in :data:`RAW_DTYPES`."""
    return np.dtype(RAW_DTYPES[dtype]).itemsize


def decode(raw: AnyArray, dtype: str) -> AnyArray:
    """Return the values of raw elements: bfloat16 and float8 as float32, other dtypes unchanged."""
    if dtype == "bfloat16":
        return decode_bfloat16(raw)
    if dtype in FLOAT8:
        exponent_bits, mantissa_bits = FLOAT8[dtype]
        table = _build_float8_table(exponent_bits, mantissa_bits)
        values: AnyArray = table[raw]
        return values
    return raw


def _build_float8_table(exponent_bits: int, mantissa_bits: int) -> AnyArray:
    """Return the float32 values of the 256 bit patterns.

    E5M2 has the infinities of IEEE 754. E4M3 has none, and one NaN of each sign.
    """
    patterns = np.arange(256)
    exponent = (patterns >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = patterns & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    significand = np.where(exponent > 0, 1.0, 0.0) + fraction / (1 << mantissa_bits)
    values = significand * 2.0 ** (np.maximum(exponent, 1) - bias)
    if exponent_bits == 5:
        special_values = np.where(fraction == 0, np.inf, np.nan)
        values = np.where(exponent == 31, special_values, values)
    else:
        values = np.where((patterns & 0x7F) == 0x7F, np.nan, values)
    return np.where(patterns & 0x80, -values, values).astype(np.float32)
