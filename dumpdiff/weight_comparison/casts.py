"""Rounding from one dtype to another, and which rounding turned one tensor into another.

Round to nearest even is IEEE 754's default and what every framework's cast does; cutting the lower bits off is what
a memory copy of the upper half of a float32 does, and rounding twice what a detour through a third dtype does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..checkpoints.elements import FLOAT8, decode
from ..comparison.narrow_dtypes import round_to_dtype
from ..model.arrays import AnyArray
from ..model.dtypes import unit_roundoff

NEAREST = "nearest"  #: the one rounding that is no mistake


def _nearest(dtype: str) -> Callable[[AnyArray], AnyArray]:
    return (
        lambda values: round_to_dtype(values, dtype)
        if dtype in ("float16", "bfloat16")
        else values.astype(dtype)
    )


def _cut(values: AnyArray) -> AnyArray:
    """The upper half of a float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    cut: AnyArray = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    return cut


def _twice(first: str, last: str) -> Callable[[AnyArray], AnyArray]:
    one, two = _nearest(first), _nearest(last)
    return lambda values: two(one(values).astype(np.float32))


def _up(values: AnyArray) -> AnyArray:
    """bfloat16 with halves rounded away from zero: half a unit added to the magnitude, then cut."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: AnyArray = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


#: dtype -> what to call a rounding to it -> the rounding. The first is the right one.
_CASTS: Mapping[str, Mapping[str, Callable[[AnyArray], AnyArray]]] = {
    "bfloat16": {
        NEAREST: _nearest("bfloat16"),
        "towards zero (bits cut off)": _cut,
        "halves away from zero": _up,
        "twice: to float16, then to bfloat16": _twice("float16", "bfloat16"),
    },
    "float16": {
        NEAREST: _nearest("float16"),
        "twice: to bfloat16, then to float16": _twice("bfloat16", "float16"),
    },
    "float32": {NEAREST: _nearest("float32")},
}


def is_float8_rounding(values: AnyArray, steps: AnyArray, rounded: AnyArray, dtype: str) -> bool:
    """Whether ``rounded`` is ``values`` rounded to nearest in an 8-bit dtype with a scale for each element (``steps``).

    What is rounded is the quotient; that is itself a float32, and which one depends on whether the scale was divided
    by or its reciprocal multiplied with. Both neighbours count.
    """
    with np.errstate(all="ignore"):
        quotient = values.astype(np.float32) / steps
        ways = [
            _to_float8(quotient * np.float32(1 + slack), dtype) * steps
            for slack in (-(2.0**-22), 2.0**-22)
        ]
    return bool(
        np.all(
            np.logical_or(*(way == rounded for way in ways))
            | (np.isnan(values) & np.isnan(rounded))
        )
    )


#: Largest number of the 8-bit dtypes; beyond it they are cut off (OCP 8-bit floating point specification v1.0).
_LARGEST_FLOAT8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def _to_float8(values: AnyArray, dtype: str) -> AnyArray:
    """float32 rounded to nearest even in an 8-bit dtype, and cut off at its largest."""
    exponent, mantissa = FLOAT8[dtype]
    least = 2.0 ** (2 - (1 << (exponent - 1)))  # below it, all numbers are as far apart as there
    spacing = np.exp2(np.floor(np.log2(np.maximum(np.abs(values), least))) - mantissa)
    largest = _LARGEST_FLOAT8[dtype]
    found: AnyArray = np.clip(np.rint(values / spacing) * spacing, -largest, largest)
    return found


def list_candidate_casts(target: str, reference: str) -> list[tuple[str, str, bool]]:
    """(dtype, rounding, whether the target is the rounded side) that could explain two tensors of these dtypes.

    Of two of one dtype, a detour through a narrower one.
    """
    if target not in _WIDTH or reference not in _WIDTH:
        return []
    if target == reference:
        detours = [dtype for dtype in ("bfloat16", "float16") if dtype != target]
        return [
            (dtype, way, on)
            for dtype in detours
            for way in list(_CASTS[dtype])[:2]
            for on in (True, False)
        ]
    on_target = unit_roundoff(target) > unit_roundoff(reference)
    narrow = target if on_target else reference
    return [(narrow, way, on_target) for way in _CASTS.get(narrow, ())]


NARROW_DTYPES = (
    "float16",
    "bfloat16",
)  #: a weight that is kept in one of these is rounded once, and should not be again
_WIDTH = ("float64", "float32", "float16", "bfloat16")


def round_values(values: AnyArray, dtype: str, way: str) -> AnyArray:
    """``values`` rounded to ``dtype`` in the way :func:`candidates` names, as float32 or wider."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _CASTS[dtype][way](values)


def is_detour(dtype: str, target: str, reference: str) -> bool:
    """Whether ``dtype`` is neither side's own: the values went through it on the way."""
    return dtype not in (target, reference)


def encode_elements(raw: AnyArray, dtype: str, wanted: str) -> AnyArray:
    """Raw elements of one dtype as raw elements of another, rounded to nearest; the same array if it is the same."""
    if dtype == wanted:
        return raw
    values = decode(raw, dtype)
    if wanted not in _CASTS:
        return values.astype(wanted)
    made = round_values(values, wanted, NEAREST)
    if wanted == "bfloat16":
        bits = np.ascontiguousarray(made, dtype=np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    return made.astype(wanted)
