"""By how much the recorded statistics of a tensor may differ from those computed from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.value_classes import count_evidence
from ..model.arrays import Floats, Ints
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
#: ed., 2.8 and 4.3); pairwise and blocked sums have much less. Measured on 110 dumps: no record of
#: a sound dump is beyond it.
_SUM_UNITS = 8.0
#: Mean and norm are rounded to the tensor's own dtype where the recorder computes in it. Measured:
#: 0.96 u for bfloat16 and 0.65 u for float16; twice the unit allows for a second rounding.
_DTYPE_UNITS = 2.0
#: Numbers that float32 and wider types are rounded to at least: statistics go through float32.
_FLOAT32_UNIT = UNIT_ROUNDOFF["float32"]
#: Twice half the smallest subnormal of float16; the other dtypes have the range of float32.
_FLOAT16_FLOOR = 2.0**-24
#: Squares that are subnormal in float32 are rounded to multiples of 2**-149, so that a norm of n
#: elements is off by up to sqrt(n 2**-149). Seen in second moments of 1e-21.
_SQUARE_FLOOR = 2.0**-74
_WIDE_DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class RecordedNumbers:
    """The statistics of all tensors of a trace, and by how much each may be off; (tensors,) each.

    NaN in a number means that it was not recorded.
    """

    high: Floats
    low: Floats
    mean: Floats
    norm: Floats
    sizes: Floats
    extreme_errors: Floats  #: of max and min, relative to the larger magnitude of the two
    sum_errors: Floats  #: of the norm, relative; of the mean, relative to the root mean square
    floors: Floats  #: absolute error of mean and norm
    units: Floats  #: unit roundoff of the dtype
    evidence: Ints  #: how many of the statistics carry information, 0 to 4


def collect_numbers(trace: Trace) -> RecordedNumbers:
    """Return the recorded statistics of a trace with their errors."""
    tensors = trace.tensors
    columns = {name: tensors[name].to_numpy(dtype=float) for name in ("max", "min", "mean", "norm")}
    sizes = tensors["size"].to_numpy(dtype=float)
    dtypes = tensors["dtype"]
    printed = _PRINT_UNITS * trace.source.resolution
    is_constant = tensors["constant"].to_numpy()
    extreme_errors = np.where(is_constant, max(printed, _CONSTANT_ERROR), printed) + _FLOAT32_UNIT
    units_by_dtype = {dtype: get_unit_roundoff(dtype) for dtype in dtypes.unique()}
    units = dtypes.map(units_by_dtype).to_numpy(dtype=float)
    coarse_units = np.where(dtypes.isin(_WIDE_DTYPES), 0.0, units)
    summation = _SUM_UNITS * _FLOAT32_UNIT * np.sqrt(np.maximum(sizes, 1.0))
    rounding = _DTYPE_UNITS * coarse_units
    floors = np.where((dtypes == "float16").to_numpy(), _FLOAT16_FLOOR, 0.0)
    floors += _SQUARE_FLOOR * np.sqrt(np.maximum(sizes, 1.0))
    return RecordedNumbers(
        high=columns["max"],
        low=columns["min"],
        mean=columns["mean"],
        norm=columns["norm"],
        sizes=np.where(sizes >= 0, sizes, np.nan),
        extreme_errors=extreme_errors,
        sum_errors=extreme_errors + summation + rounding,
        floors=floors,
        units=units,
        evidence=count_evidence(tensors),
    )
