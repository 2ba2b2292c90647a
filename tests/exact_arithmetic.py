"""Sums with 60 digits, and arrays whose numbers are as small and as large as their dtype allows."""

from __future__ import annotations

from collections.abc import Iterable

import mpmath
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumpdiff.model.arrays import AnyArray

#: 60 digits: relative errors of double precision stay visible, exponents have no limit.
PRECISION = mpmath.MPContext()
PRECISION.dps = 60

REALS = (np.float16, np.float32, np.float64)
INTEGERS = (np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)
COMPLEX = (np.complex64, np.complex128)

#: Magnitudes at which a plain sum of squares fails in one dtype or another.
MAGNITUDES = (1e-308, 1e-200, 1e-160, 1e-45, 1e-25, 1e-21, 1.0, 1e4, 1e19, 1e25, 1e154, 1e307)


def to_numbers(array: AnyArray) -> list[mpmath.mpf]:
    """Return the elements exactly; a complex number is two."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        flat = np.stack([flat.real, flat.imag], axis=-1).reshape(-1)
    numbers = flat.tolist()
    return [
        PRECISION.mpf(int(number) if flat.dtype.kind in "iub" else number) for number in numbers
    ]


def sum_squares(numbers: Iterable[mpmath.mpf]) -> mpmath.mpf:
    return PRECISION.fsum(number * number for number in numbers)


def get_unit_roundoff(*arrays: AnyArray) -> float:
    """Return that of the type that is computed in: float32 if all arrays are no wider."""
    is_single = all(array.dtype in (np.float16, np.float32, np.complex64) for array in arrays)
    return 2.0**-24 if is_single else 2.0**-53


@st.composite
def draw_arrays(
    draw: st.DrawFn, dtypes: Iterable[type], size: int | None = None, max_size: int = 12
) -> AnyArray:
    """Return a vector of one of these dtypes, with numbers of one magnitude or of several."""
    dtype = draw(st.sampled_from(sorted(map(np.dtype, dtypes), key=str)))
    if size is None:
        size = draw(st.integers(1, max_size))
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind in "fc" else {}
    if dtype.kind != "f" or draw(st.integers(0, 4)) == 0:
        array: AnyArray = draw(hnp.arrays(dtype, size, elements=hnp.from_dtype(dtype, **finite)))
        return array
    limits = np.finfo(dtype)
    magnitudes = [m for m in MAGNITUDES if limits.smallest_subnormal <= m <= limits.max]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = draw(st.lists(st.sampled_from(magnitudes), min_size=1, max_size=3))
    return (rng.choice(scales, size) * rng.uniform(-1, 1, size)).astype(dtype)


@st.composite
def draw_pairs(draw: st.DrawFn, dtypes: Iterable[type]) -> tuple[AnyArray, AnyArray]:
    """Return (array, array of its size and dtype) that differ in some or all elements."""
    reference = draw(draw_arrays(dtypes))
    other = draw(draw_arrays([reference.dtype.type], size=reference.size))
    is_changed = draw(hnp.arrays(np.bool_, reference.size))
    return np.where(is_changed, other, reference), reference
