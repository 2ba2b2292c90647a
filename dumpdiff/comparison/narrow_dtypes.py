"""Rounding to a narrower type: tells a dtype policy (one side computes in bfloat16) from a fault."""

from __future__ import annotations

import numpy as np

from ..model.arrays import AnyArray


def round_to(array: AnyArray, dtype: str) -> AnyArray:
    """``array`` rounded to nearest even in ``dtype`` (float16 or bfloat16), returned as float32; others unchanged."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
        result: AnyArray = np.where(np.isnan(array), np.float32(np.nan), rounded.view(np.float32))
        return result
    return array
