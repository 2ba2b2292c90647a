"""Rounding from one dtype to another, and the roundings that can explain two tensors.

Round to nearest even is the default of IEEE 754 and of every framework's cast. Truncation is what
copying the upper half of a float32 does, and rounding twice is what a cast through a third dtype
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ..checkpoints.elements import FLOAT8, decode
from ..comparison.narrow_dtypes import round_to_dtype
from ..model.arrays import AnyArray
from ..model.dtypes import get_unit_roundoff

NEAREST = "nearest"  #: the only rounding that is not a mistake

#: A weight that is stored in one of these dtypes is rounded once, and should not be rounded again.
NARROW_DTYPES = ("float16", "bfloat16")
_FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")

_UPPER_HALF = np.uint32(0xFFFF0000)  #: the bits of a float32 that a bfloat16 has
_HALF_UNIT = np.uint32(0x8000)  #: half of the last bit of a bfloat16

#: Relative error of a quotient in float32, a few units: it depends on whether the values were
#: divided by the scale or multiplied by its reciprocal.
_QUOTIENT_ERROR = 2.0**-22
#: Largest values of the 8-bit dtypes; larger values are clipped (OCP 8-bit floating point
#: specification v1.0).
_LARGEST_FLOAT8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def _round_to_nearest(values: AnyArray, dtype: str) -> AnyArray:
    return round_to_dtype(values, dtype) if dtype in NARROW_DTYPES else values.astype(dtype)


def _round_twice(values: AnyArray, first_dtype: str, last_dtype: str) -> AnyArray:
    first_values = _round_to_nearest(values, first_dtype).astype(np.float32)
    return _round_to_nearest(first_values, last_dtype)


def _truncate_to_bfloat16(values: AnyArray) -> AnyArray:
    """Return the upper half of each float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    truncated: AnyArray = (bits & _UPPER_HALF).view(np.float32)
    return truncated


def _round_half_away_from_zero(values: AnyArray) -> AnyArray:
    """Round to bfloat16: add half a unit to the magnitude, then truncate."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: AnyArray = ((bits + _HALF_UNIT) & _UPPER_HALF).view(np.float32)
    return rounded


#: dtype -> name of a rounding to it -> the rounding. The first one is correct.
_CASTS: Mapping[str, Mapping[str, Callable[[AnyArray], AnyArray]]] = {
    "bfloat16": {
        NEAREST: partial(_round_to_nearest, dtype="bfloat16"),
        "towards zero (bits cut off)": _truncate_to_bfloat16,
        "halves away from zero": _round_half_away_from_zero,
        "twice: to float16, then to bfloat16": partial(
            _round_twice, first_dtype="float16", last_dtype="bfloat16"
        ),
    },
    "float16": {
        NEAREST: partial(_round_to_nearest, dtype="float16"),
        "twice: to bfloat16, then to float16": partial(
            _round_twice, first_dtype="bfloat16", last_dtype="float16"
        ),
    },
    "float32": {NEAREST: partial(_round_to_nearest, dtype="float32")},
}


def is_float8_rounding(
    values: AnyArray, scales: AnyArray, rounded_values: AnyArray, dtype: str
) -> bool:
    """Whether ``rounded_values`` are ``values``, rounded to nearest in an 8-bit dtype.

    ``scales`` has one scale for each element. The quotient of value and scale is rounded. The
    quotient is itself inexact (see _QUOTIENT_ERROR), so both of its neighbors are accepted.
    """
    with np.errstate(all="ignore"):
        quotient = values.astype(np.float32) / scales
        lower = _round_to_float8(quotient * np.float32(1 - _QUOTIENT_ERROR), dtype) * scales
        upper = _round_to_float8(quotient * np.float32(1 + _QUOTIENT_ERROR), dtype) * scales
    is_neighbor = (lower == rounded_values) | (upper == rounded_values)
    both_nan = np.isnan(values) & np.isnan(rounded_values)
    return bool(np.all(is_neighbor | both_nan))


def _round_to_float8(values: AnyArray, dtype: str) -> AnyArray:
    """Round float32 to nearest even in an 8-bit dtype, and clip to its largest value."""
    exponent_bits, mantissa_bits = FLOAT8[dtype]
    smallest_normal = 2.0 ** (2 - (1 << (exponent_bits - 1)))  # the spacing is constant below it
    magnitudes = np.maximum(np.abs(values), smallest_normal)
    spacing = np.exp2(np.floor(np.log2(magnitudes)) - mantissa_bits)
    largest = _LARGEST_FLOAT8[dtype]
    rounded: AnyArray = np.clip(np.rint(values / spacing) * spacing, -largest, largest)
    return rounded


def list_candidate_casts(target: str, reference: str) -> list[tuple[str, str, bool]]:
    """List the (dtype, rounding, whether the target is rounded) that could explain two dtypes.

    For equal dtypes, these are casts through a narrower dtype and back.
    """
    if target not in _FLOAT_DTYPES or reference not in _FLOAT_DTYPES:
        return []
    if target != reference:
        on_target = get_unit_roundoff(target) > get_unit_roundoff(reference)
        narrow = target if on_target else reference
        return [(narrow, rounding, on_target) for rounding in _CASTS.get(narrow, ())]
    candidates = []
    for dtype in ("bfloat16", "float16"):
        if dtype == target:
            continue
        for rounding in list(_CASTS[dtype])[:2]:
            candidates += [(dtype, rounding, True), (dtype, rounding, False)]
    return candidates


def round_values(values: AnyArray, dtype: str, rounding: str) -> AnyArray:
    """Round to ``dtype``, by a rounding of :func:`list_candidate_casts`; float32 or wider."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _CASTS[dtype][rounding](values)


def is_detour(dtype: str, target: str, reference: str) -> bool:
    """Whether ``dtype`` belongs to neither side: the values were cast to it and back."""
    return dtype not in (target, reference)


def encode_elements(raw: AnyArray, dtype: str, new_dtype: str) -> AnyArray:
    """Convert raw elements from one dtype to another, rounded to nearest.

    The same array is returned if the dtypes are equal.
    """
    if dtype == new_dtype:
        return raw
    values = decode(raw, dtype)
    if new_dtype not in _CASTS:
        return values.astype(new_dtype)
    rounded = round_values(values, new_dtype, NEAREST)
    if new_dtype == "bfloat16":
        bits = np.ascontiguousarray(rounded, dtype=np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    return rounded.astype(new_dtype)
