"""By how much the recorded statistics of a tensor may differ from those computed from it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff
from ..model.trace import Trace

#: Units of ``Source.resolution`` by which a printed number may be off. It is printed with n
#: significant digits, so it is off by at most half a unit of the last one: 5e-6 relative to a
#: number that begins with 1, for six digits, whose resolution is given as 1e-6.
_PRINT_UNITS = 5.0
#: The same of a constant in a MindSpore graph, which is printed with six digits in every dump.
_CONSTANT_ERROR = 5e-6
#: Sums are formed in float32 at least. Their rounding errors add up like a random walk, to about
#: u sqrt(n) of the sum of magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
#: ed., 2.8 and 4.3); pairwise and blocked sums have much less. Measured on 28 dumps: at most 2.0
#: u sqrt(n), of short sums.
_SUM_UNITS = 8.0
#: Mean and norm are rounded to the tensor's own dtype where the recorder computes in it. Measured:
#: 0.96 u for bfloat16 and 0.65 u for float16; twice the unit allows for a second rounding.
_DTYPE_UNITS = 2.0
#: Numbers that float32 and wider types are rounded to at least: statistics go through float32.
_FLOAT32_UNIT = UNIT_ROUNDOFF["float32"]
_WIDE_DTYPES = ("float32", "float64", "complex64", "complex128")


def compute_extreme_errors(trace: Trace) -> Floats:
    """Return (tensors,) the allowed error of max and min, relative to the larger magnitude."""
    printed = _PRINT_UNITS * trace.source.resolution
    is_constant = trace.tensors["constant"].to_numpy()
    errors: Floats = np.where(is_constant, max(printed, _CONSTANT_ERROR), printed)
    return errors + _FLOAT32_UNIT


def compute_sum_errors(trace: Trace) -> Floats:
    """Return (tensors,) the allowed error of mean and norm.

    It is relative to the norm, and for the mean to the root mean square.
    """
    sizes = np.maximum(trace.tensors["size"].to_numpy(dtype=float), 1.0)
    summation = _SUM_UNITS * _FLOAT32_UNIT * np.sqrt(sizes)
    dtype_units = trace.tensors["dtype"].map(_get_coarse_unit).to_numpy(dtype=float)
    errors: Floats = compute_extreme_errors(trace) + summation + _DTYPE_UNITS * dtype_units
    return errors


def compute_floors(trace: Trace) -> Floats:
    """Return (tensors,) the absolute error of mean and norm of float16, whose range ends early.

    Half the smallest subnormal of float16 is 2**-25; other dtypes have the range of float32.
    """
    is_half = (trace.tensors["dtype"] == "float16").to_numpy()
    floors: Floats = np.where(is_half, 2.0**-24, 0.0)
    return floors


def _get_coarse_unit(dtype: str) -> float:
    """Return the unit roundoff of dtypes narrower than float32, 0 for the others."""
    return 0.0 if dtype in _WIDE_DTYPES else get_unit_roundoff(dtype)


def get_numbers(tensors: pd.DataFrame) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return the columns max, min, mean, norm, and size (NaN if unknown) as float64."""
    sizes = tensors["size"].to_numpy(dtype=float)
    high, low, mean, norm = (
        tensors[name].to_numpy(dtype=float) for name in ("max", "min", "mean", "norm")
    )
    return high, low, mean, norm, np.where(sizes >= 0, sizes, np.nan)
