"""Rounding to a narrower dtype: tells a dtype policy (one side in bfloat16) from a fault."""

from __future__ import annotations

import numpy as np

from ..model.arrays import AnyArray


def round_to_dtype(array: AnyArray, dtype: str) -> AnyArray:
    """Return ``array`` rounded to nearest even in float16 or bfloat16, as float32.

    Other dtypes leave the array unchanged.
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        is_odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded_bits = (bits + np.uint32(0x7FFF) + is_odd) & np.uint32(0xFFFF0000)
        rounded = rounded_bits.view(np.float32)
        result: AnyArray = np.where(np.isnan(array), np.float32(np.nan), rounded)
        return result
    return array
