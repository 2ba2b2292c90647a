"""The noise of a pair of dumps: the errors that it shows where it agrees.

Rounding errors grow along a network, and more so in its backward pass. The pairs found by value
agree by definition, so their errors tell how much to expect.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph.statistics import STATISTICS
from ..model.arrays import Flags, Floats, Ints, Objects
from ..model.dtypes import get_unit_roundoff
from ..model.trace import BACKWARD, PHASES
from .statistics import compute_extreme_factors

#: Pairs that are needed to measure the noise of a phase.
_MIN_PAIRS = 8
#: Noise of whole tensors in units of the lower quartile of the errors: in clean float32 pairs the
#: largest error of a phase is 3 to 6 times that.
_QUARTILE, _QUARTILES = 0.25, 8
#: The same for the errors of one statistic, which are single numbers and may by chance be near 0:
#: the largest of 1,000 numbers of normal distribution, 3.7 standard deviations (see
#: ``statistics.compute_extreme_factors``), is 12 times the lower quartile of their magnitudes, 0.32
#: standard deviations.
_STATISTIC_QUARTILES = 12
#: ... and 2.3 times their 90 % quantile, 1.645 standard deviations. From op to op errors grow.
_UPPER_QUANTILE, _UPPER_QUANTILES = 0.9, 3
#: Unit roundoffs by which statistics differ that are equal but for rounding.
_EQUAL_ROUNDOFFS = 32
#: Sums of squares that a recorder has side by side: the lanes of AVX2.
_PARALLEL_SUMS = 8
#: Upper bound of the noise, in units of the tolerance by dtype and operator.
_MAX_TOLERANCES = 64


def measure_noise(alignment: Alignment, pairs: pd.DataFrame) -> Floats:
    """Return (pairs,) the noise of whole tensors: 8 times the lower quartile of the phase's errors.

    0 for values that no op computed, and where fewer than eight pairs are compared by whole
    tensors. The lower quartile is used because most values diverge after a divergence. The noise is
    at most 64 tolerances.
    """
    errors = pairs["error"].to_numpy()
    is_whole = (pairs["metric"] != "statistics").to_numpy()
    noise = np.zeros(len(pairs))
    for rows, sample_rows, _ in _iterate_phases(alignment, pairs, is_whole & (errors > 0)):
        noise[rows] = _QUARTILES * float(np.quantile(errors[sample_rows], _QUARTILE))
    limited: Floats = np.minimum(noise, _MAX_TOLERANCES * pairs["tolerance"].to_numpy())
    return limited


def measure_statistic_noise(alignment: Alignment, pairs: pd.DataFrame, errors: Floats) -> Floats:
    """Return (statistics, pairs) the noise of each statistic where each pair was computed.

    ``errors`` (statistics, pairs) is what each statistic shows. The noise is three times the 90 %
    quantile of what was computed before the pair in its phase: there it cannot hold the pair's own
    divergence, nor a later one, and it follows errors that grow along a deep network. Where fewer
    than eight samples were computed before, it is twelve times the lower quartile of the phase,
    because most values may diverge. 0 for values that no op computed and in phases with fewer than
    eight samples; at most 64 tolerances. The norm has at least the noise of its summation.

    The mean has at least the noise of the norm: a common factor shows fully in the mean of a tensor
    of one sign, and little in most others.
    """
    noise = np.zeros_like(errors)
    for statistic_noise, statistic_errors in zip(noise, errors, strict=True):
        is_measured = (statistic_errors > 0) & np.isfinite(statistic_errors)
        for rows, sample_rows, places in _iterate_phases(
            alignment, pairs, is_measured, has_lost_gradients=True
        ):
            samples = statistic_errors[sample_rows]
            quantiles = pd.Series(samples).expanding(_MIN_PAIRS).quantile(_UPPER_QUANTILE)
            n_before = np.searchsorted(places[sample_rows], places[rows], side="left")
            quantiles_before = np.concatenate([[np.nan], quantiles])[n_before]
            start_noise = _STATISTIC_QUARTILES * float(np.quantile(samples, _QUARTILE))
            statistic_noise[rows] = np.where(
                n_before >= _MIN_PAIRS, _UPPER_QUANTILES * quantiles_before, start_noise
            )
    mean, norm = STATISTICS.index("mean"), STATISTICS.index("norm")
    noise[norm] = np.maximum(noise[norm], _estimate_summation(alignment, pairs, errors))
    noise[mean] = np.maximum(noise[mean], noise[norm])
    limited: Floats = np.minimum(noise, _MAX_TOLERANCES * pairs["tolerance"].to_numpy())
    return limited


def _estimate_summation(alignment: Alignment, pairs: pd.DataFrame, errors: Floats) -> Floats:
    """Return (pairs,) by how much the norm of a tensor is off whose other statistics agree.

    A recorder adds n squares in float32, in several sums side by side. If many elements are equal,
    all roundings have one sign (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    4.2), so that the norm is off by n u / 16 at most with eight sums. ``torch.norm`` is off by
    750 u for 20,480 elements that are five numbers. 0 where another statistic differs.
    """
    roundoff = get_unit_roundoff("float32")
    sizes = alignment.reference.sizes[pairs["reference"].to_numpy()]
    extreme_factors = compute_extreme_factors(sizes.astype(float))
    agrees = errors[STATISTICS.index("norm")] > pairs["tolerance"].to_numpy()
    for name, factors in (("max", extreme_factors), ("min", extreme_factors), ("mean", 1.0)):
        agrees &= errors[STATISTICS.index(name)] * factors <= _EQUAL_ROUNDOFFS * roundoff
    return np.where(agrees, roundoff * sizes / (2 * _PARALLEL_SUMS), 0.0)


def _iterate_phases(
    alignment: Alignment,
    pairs: pd.DataFrame,
    is_measured: Flags,
    *,
    has_lost_gradients: bool = False,
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield, per phase: its computed rows, its samples, and the places of all rows in the runs.

    Samples are measured computed pairs that were found by value, in order of execution. A phase
    with too few of them has those of the phase before it. ``has_lost_gradients``: gradients that no
    recorded op wrote are computed rows, too; their whole tensors show a fault that no other does.
    """
    target, reference = alignment.target, alignment.reference
    values_t, values_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    is_computed_t, is_computed_r = (
        target.producers[values_t] >= 0,
        reference.producers[values_r] >= 0,
    )
    places = target.positions[values_t] + reference.positions[values_r]
    phases_t: Objects = target.classes["phase"].to_numpy()[values_t]
    phases_r: Objects = reference.classes["phase"].to_numpy()[values_r]
    phases: Objects = np.where(is_computed_t, phases_t, phases_r)
    is_computed = is_computed_t | is_computed_r
    if has_lost_gradients:  # computed by ops without a record
        is_computed |= (phases_t == BACKWARD) & (phases_r == BACKWARD)
    tolerances = pairs["tolerance"].to_numpy()
    is_sample = is_computed & is_measured & (tolerances > 0)
    is_sample &= (pairs["evidence"] == "value").to_numpy()
    sample_rows = np.empty(0, dtype=np.int64)
    for phase in PHASES:
        phase_samples = np.flatnonzero(is_sample & (phases == phase))
        if len(phase_samples) >= _MIN_PAIRS:
            sample_rows = phase_samples[np.argsort(places[phase_samples], kind="stable")]
        phase_rows = np.flatnonzero(is_computed & (phases == phase))
        if len(sample_rows) and len(phase_rows):
            yield phase_rows, sample_rows, places
