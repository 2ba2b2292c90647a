"""Elements of tensors in files: how wide each dtype is, which bits NumPy can hold it in, and what they are worth.

NumPy has no bfloat16 and no float8: their bits are kept as unsigned integers (*raw*), which all that only moves
elements can work on, and decoded to float32 where values count; that is exact.
"""

from __future__ import annotations

import numpy as np

from ..model.arrays import AnyArray
from ..readers.npy import decode_bfloat16

#: dtype -> NumPy dtype of its raw elements, little-endian.
STORED = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float8_e4m3fn": "|u1",
    "float8_e5m2": "|u1", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint64": "<u8",
    "uint32": "<u4", "uint16": "<u2", "uint8": "|u1", "bool": "|b1", "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip


def item_size(dtype: str) -> int:
    """Bytes of one element. Raises KeyError for a dtype that is not in :data:`STORED`."""
    return np.dtype(STORED[dtype]).itemsize


def decode(raw: AnyArray, dtype: str) -> AnyArray:
    """The values of raw elements: bfloat16 and float8 as float32, everything else as it is."""
    if dtype == "bfloat16":
        return decode_bfloat16(raw)
    if dtype in FLOAT8:
        exponent, mantissa = FLOAT8[dtype]
        table = _float8(exponent, mantissa)
        values: AnyArray = table[raw]
        return values
    return raw


#: Widths of exponent and mantissa (OCP 8-bit floating point specification v1.0, section 5).
FLOAT8 = {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}


def _float8(exponent: int, mantissa: int) -> AnyArray:
    """The values of the 256 patterns. E5M2 has the infinities of IEEE 754, E4M3 none and one NaN of each sign."""
    bits = np.arange(256)
    power, fraction = (bits >> mantissa) & ((1 << exponent) - 1), bits & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    significand = np.where(power > 0, 1.0, 0.0) + fraction / (1 << mantissa)
    values = significand * 2.0 ** (np.maximum(power, 1) - bias)
    if exponent == 5:
        values = np.where(power == 31, np.where(fraction == 0, np.inf, np.nan), values)
    else:
        values = np.where((bits & 0x7F) == 0x7F, np.nan, values)
    return np.where(bits & 0x80, -values, values).astype(np.float32)
