"""How far the elements of a weight moved: counted in ulps, and whether like one optimizer step.

Rounding moves an element by an ulp or two, in proportion to its magnitude. An optimizer moves small
and large elements by the same amount: Adam's first step is the learning rate times the sign of the
gradient (Kingma and Ba 2015, section 2.1), later steps are at most about that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..comparison.narrow_dtypes import round_to_dtype
from ..model.arrays import Floats
from ..model.dtypes import get_unit_roundoff
from .parameter_rows import ParameterRows

#: Exponent of the smallest normal number; below it the spacing is constant (IEEE 754-2019 table
#: 3.5; OCP 8-bit floating point specification v1.0, section 5).
_SMALLEST_EXPONENTS = {"float64": -1022, "float16": -14, "float8_e4m3fn": -6, "float8_e5m2": -14}
_FLOAT32_EXPONENT = -126  #: of bfloat16 too

_MAX_ROUNDING_ULPS = 1  #: another rounding moves an element by at most one ulp
#: A change counts as an amount only where at least this many ulps resolve it: an error of 1/8.
_RESOLVED_ULPS = 4
#: The fewest resolved elements that a step is read from, and the most that are looked at.
_MIN_RESOLVED, _MAX_RESOLVED = 16, 1 << 16
#: A step moves the smaller and the larger half of the resolved weights by the same amount; rounding
#: moves the larger half further, as far as it is larger. The geometric middle decides.
_EVEN_SHARE = 0.5
#: Half of all changes lie within this share of the median if every element moved by the learning
#: rate; half of normally distributed ones spread over 1.25 medians.
_CONSTANT_SPREAD = 0.25


@dataclass(frozen=True)
class Drift:
    """How the elements of the target differ from the reference's, rounded to the coarser dtype."""

    elements: int
    moved: int  #: elements that differ
    largest_ulps: int  #: of the finite elements
    dtype: str  #: whose ulps are counted
    step: float = 0.0  #: typical change, if it is the same for small and large weights, else 0
    is_constant: bool = False  #: whether nearly every resolved element moved by ``step``

    def describe(self) -> str:
        """Return the drift as a clause."""
        ulps = "1 ulp" if self.largest_ulps == 1 else f"up to {self.largest_ulps:,} ulps"
        count = f"{self.moved:,} of {self.elements:,} elements moved, by {ulps} of {self.dtype}"
        if self.largest_ulps <= _MAX_ROUNDING_ULPS:
            return f"{count}: rounded otherwise, or a step smaller than most ulps"
        if self.is_constant:
            return f"{count}: like one step of Adam with a learning rate of about {self.step:.1g}"
        if self.step:
            return f"{count}, small and large ones by about {self.step:.1g}: like optimizer steps"
        return count


def measure_drift(parameter: ParameterRows) -> Drift:
    """Count the elements that moved, and look for the mark of an optimizer step.

    All rows are read again, some megabytes at a time.
    """
    dtype = max(parameter.target.precision, parameter.reference.precision, key=get_unit_roundoff)
    n_moved = 0
    largest_ulps = 0.0
    resolved_changes, resolved_weights = [], []
    n_resolved = 0
    step = min(parameter.target.rows_per_chunk, parameter.reference.rows_per_chunk)
    for start in range(0, parameter.shape[0], step):
        rows = np.arange(start, min(start + step, parameter.shape[0]))
        target, reference = (
            round_to_dtype(values, dtype) for values in parameter.read_values(rows)
        )
        is_moved = target != reference
        n_moved += int(np.count_nonzero(is_moved))
        is_moved &= np.isfinite(target) & np.isfinite(reference)
        weights = np.abs(reference[is_moved]).astype(np.float64)
        changes = np.abs(target[is_moved].astype(np.float64) - reference[is_moved])
        ulps = changes / compute_spacing(np.maximum(weights, np.abs(target[is_moved])), dtype)
        largest_ulps = max(largest_ulps, float(ulps.max(initial=0.0)))
        is_resolved = (ulps >= _RESOLVED_ULPS) & (n_resolved < _MAX_RESOLVED)
        resolved_changes.append(changes[is_resolved])
        resolved_weights.append(weights[is_resolved])
        n_resolved += int(np.count_nonzero(is_resolved))
    size, is_constant = _find_step(
        np.concatenate(resolved_changes), np.concatenate(resolved_weights)
    )
    n_elements = parameter.shape[0] * parameter.shape[1]
    return Drift(n_elements, n_moved, int(np.ceil(largest_ulps)), dtype, size, is_constant)


def compute_spacing(magnitudes: Floats, dtype: str) -> Floats:
    """Return the distance of neighboring numbers of a dtype, at some magnitudes."""
    exponents = np.frexp(magnitudes)[1]  # magnitudes are in [2**(exponent - 1), 2**exponent)
    smallest = _SMALLEST_EXPONENTS.get(dtype, _FLOAT32_EXPONENT) + 1
    return np.ldexp(get_unit_roundoff(dtype), np.maximum(exponents, smallest))


def _find_step(changes: Floats, weights: Floats) -> tuple[float, bool]:
    """Return the typical change if it does not depend on the weight, and whether it is constant."""
    if len(changes) < _MIN_RESOLVED:
        return 0.0, False
    middle = np.median(weights)
    is_larger = weights > middle
    if not is_larger.any():
        return 0.0, False
    change_ratio = np.median(changes[is_larger]) / np.median(changes[~is_larger])
    weight_ratio = np.median(weights[is_larger]) / max(
        float(np.median(weights[~is_larger])), np.finfo(float).tiny
    )
    if change_ratio > weight_ratio**_EVEN_SHARE:
        return 0.0, False
    lower, median, upper = np.percentile(changes, (25, 50, 75))
    return float(median), bool(upper - lower <= _CONSTANT_SPREAD * median)
