"""Judge pairs by their statistics: how far a maximum, a mean and a norm may differ, and which does.

A tolerance is a relative L2 error. Each statistic shows such an error in its own way, so each has
its own limit. The statistic with the largest share of its limit decides about the pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..alignment.values import Fingerprints, compute_differences
from ..graph.statistics import STATISTICS
from ..model.arrays import Flags, Floats, Ints
from ..model.sketches import SKETCH

#: What is compared of two tensors: statistics, and the sketches of both.
COMPARED = (*STATISTICS, SKETCH)


@dataclass(frozen=True)
class StatisticErrors:
    """The relative L2 error that each statistic of each pair shows; rows as in ``COMPARED``.

    The last row, that of sketches, is there for single tensors only.
    """

    #: (statistics, pairs) relative differences; NaN where a side lacks the statistic
    differences: Floats
    factors: Floats  #: (statistics, pairs) difference that a relative L2 error of 1 explains

    @property
    def errors(self) -> Floats:
        """Return (statistics, pairs) the relative L2 error that explains each difference."""
        return self.differences / self.factors

    def get_largest(self) -> Floats:
        """Return (pairs,) the largest error that a statistic shows; Inf where none is known."""
        is_known = ~np.isnan(self.differences)
        largest: Floats = np.where(is_known, self.errors, 0.0).max(axis=0)
        return np.where(is_known.any(axis=0), largest, np.inf)


def compute_extreme_factors(sizes: Floats) -> Floats:
    """Return the largest of n errors, in units of their root mean square: sqrt(2 ln 2n).

    A relative L2 error says nothing about one element, and an extreme is one element. The largest
    magnitude of n independent errors of normal distribution is about sqrt(2 ln 2n) standard
    deviations (H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., 2003, section 10.5): 3.9
    for 1,000 elements, 6.2 for 10**8. The errors of single elements are not equally large: that of
    a dot product is relative to the sum of its terms' magnitudes (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., 3.1), so large elements have large errors. Hence the unit of an
    extreme's difference is its own magnitude, if that is larger than the root mean square. In 1,700
    pairs of real dumps the difference of an extreme was 0.3 errors (median), 1.8 errors (99 %) and
    0.9 factors (largest), apart from additions of which few elements differ at all (3.3 factors). A
    tensor of one element has the factor 1.
    """
    factors: Floats = np.sqrt(2 * np.log(2 * np.fmax(sizes, 1.0)))
    return np.where(sizes > 1, factors, 1.0)


def measure_statistics(
    prints_t: Fingerprints, prints_r: Fingerprints, is_exact: Flags
) -> StatisticErrors:
    """Return what the statistics of each pair of values show.

    ``prints_t`` and ``prints_r`` hold the statistics of each pair, without what is set aside.
    The factor of norm and mean is 1, that of the extremes is :func:`compute_extreme_factors`. It
    is 1, too, for what ``is_exact`` says is not the result of rounded arithmetic: integers, and
    values that both runs were given, whose elements differ by their own rounding at most.
    """
    rows = np.arange(len(is_exact))
    differences = compute_differences(prints_t, rows, prints_r, rows)
    return _build_errors(differences, prints_t.size, is_exact)


def measure_differences(
    target: Fingerprints, rows_t: Ints, reference: Fingerprints, rows_r: Ints
) -> StatisticErrors:
    """Return what the statistics of computed values show, for each pair of rows."""
    differences = compute_differences(target, rows_t, reference, rows_r)
    return _build_errors(differences, target.size[rows_t], np.zeros(len(rows_t), dtype=bool))


def measure_joint_statistics(
    target: Fingerprints, reference: Fingerprints, is_given: bool
) -> StatisticErrors:
    """Return what the statistics of one fused tensor and its parts show, each taken as one tensor.

    ``is_given`` is true for parameters and the batch, see :func:`measure_statistics`.
    """
    row = np.array([0])
    differences = compute_differences(target, row, reference, row)
    return _build_errors(differences, target.size, np.array([is_given]))


def _build_errors(differences: Floats, sizes: Floats, is_exact: Flags) -> StatisticErrors:
    extreme_factors = np.where(is_exact, 1.0, compute_extreme_factors(sizes))
    factors = np.ones_like(differences)
    factors[np.isin(STATISTICS, ("max", "min"))] = extreme_factors
    return StatisticErrors(differences, factors)


def judge_statistics(
    pairs: pd.DataFrame, measured: StatisticErrors, allowed_errors: Floats
) -> None:
    """Set error, tolerance, statistic and statistic_error of the pairs compared by statistics.

    The statistic with the largest error, in units of the (statistics, pairs) ``allowed_errors``,
    decides. ``statistic_error`` is its difference as recorded: the error times its factor. Pairs
    that are compared otherwise get '' and NaN.
    """
    is_judged = (pairs["metric"] == "statistics") & np.isfinite(pairs["error"])
    shares = _compute_shares(measured.errors, allowed_errors)
    deciding_statistics = np.argmax(shares, axis=0)
    columns = np.arange(len(pairs))
    pairs["statistic"] = np.array(COMPARED, dtype=object)[deciding_statistics]
    pairs["statistic_error"] = measured.differences[deciding_statistics, columns]
    pairs.loc[~is_judged, "statistic"] = ""
    pairs.loc[~is_judged, "statistic_error"] = np.nan
    errors = measured.errors[deciding_statistics, columns]
    tolerances = allowed_errors[deciding_statistics, columns]
    pairs["error"] = np.where(is_judged, errors, pairs["error"])
    pairs["tolerance"] = np.where(is_judged, tolerances, pairs["tolerance"])


def _compute_shares(errors: Floats, allowed: Floats) -> Floats:
    """Return the errors in units of what is allowed; -1 where unknown, so that it never decides.

    Where nothing is allowed, equality is still right.
    """
    with np.errstate(all="ignore"):
        shares = np.where(errors == 0, 0.0, errors / allowed)
    return np.where(np.isnan(errors), -1.0, shares)
