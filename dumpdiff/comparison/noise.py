"""The noise of a pair of dumps: the errors that it shows where it agrees.

Rounding errors grow along a network, and more so in its backward pass. The pairs found by value
agree by definition, so their errors tell how much to expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph.statistics import STATISTICS
from ..model.arrays import Flags, Floats, Ints
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
#: What is allowed in the backward pass by statistics, in units of the tolerance or the noise. The
#: gradients of norms and roots are differences of large terms, so that their errors have no normal
#: distribution: in 270 sound pairs of runs, the largest error of a gradient is 3.6 times the limit
#: without this factor. Of 450 faults none shows first in a gradient by less than 16 times.
GRADIENT_FACTOR = 4
#: Unit roundoffs by which statistics differ that are equal but for rounding.
_EQUAL_ROUNDOFFS = 32
#: Sums of squares that a recorder has side by side: the lanes of AVX2.
_PARALLEL_SUMS = 8
#: Upper bound of the noise, in units of the tolerance by dtype and operator.
_MAX_TOLERANCES = 64
#: The same of the norm alone, if all other statistics of a pair are equal.
_MAX_SUMMATION_TOLERANCES = 256


@dataclass(frozen=True)
class _ComputedRows:
    """The pairs that an op computed, by phase."""

    by_phase: tuple[Ints, ...]  #: in the order of ``PHASES``
    is_found_by_value: Flags  #: (pairs,) computed pairs that agree by definition
    places: Floats  #: (pairs,) in the two runs

    def iterate_samples(self, is_measured: Flags) -> Iterator[tuple[Ints, Ints]]:
        """Yield, per phase with samples: its rows, and its samples in order of execution.

        Samples are measured pairs that were found by value. A phase with too few of them has those
        of the phase before it.
        """
        is_sample = self.is_found_by_value & is_measured
        sample_rows = np.empty(0, dtype=np.int64)
        for phase_rows in self.by_phase:
            phase_samples = phase_rows[is_sample[phase_rows]]
            if len(phase_samples) >= _MIN_PAIRS:
                order = np.argsort(self.places[phase_samples], kind="stable")
                sample_rows = phase_samples[order]
            if len(sample_rows) and len(phase_rows):
                yield phase_rows, sample_rows


def measure_noise(alignment: Alignment, pairs: pd.DataFrame) -> Floats:
    """Return (pairs,) the noise of whole tensors: 8 times the lower quartile of the phase's errors.

    0 for values that no op computed, and where fewer than eight pairs are compared by whole
    tensors. The lower quartile is used because most values diverge after a divergence. The noise is
    at most 64 tolerances.
    """
    errors = pairs["error"].to_numpy()
    is_whole = (pairs["metric"] != "statistics").to_numpy()
    noise = np.zeros(len(pairs))
    computed_rows = _find_computed_rows(alignment, pairs)
    for rows, sample_rows in computed_rows.iterate_samples(is_whole & (errors > 0)):
        noise[rows] = _QUARTILES * float(np.quantile(errors[sample_rows], _QUARTILE))
    limited: Floats = np.minimum(noise, _MAX_TOLERANCES * pairs["tolerance"].to_numpy())
    return limited


def measure_statistic_noise(
    alignment: Alignment, pairs: pd.DataFrame, errors: Floats, allowed_errors: Floats | None = None
) -> Floats:
    """Return (statistics, pairs) the noise of each statistic where each pair was computed.

    ``errors`` (statistics, pairs) is what each statistic shows. The noise is three times the 90 %
    quantile of what was computed before the pair in its phase: there it cannot hold the pair's own
    divergence, nor a later one, and it follows errors that grow along a deep network. Where fewer
    than eight samples were computed before, it is twelve times the lower quartile of the phase,
    because most values may diverge. 0 for values that no op computed and in phases with fewer than
    eight samples. Of gradients it is four times that, and at least four tolerances; of nothing more
    than 64 tolerances. The norm has at least the noise of its summation.

    The mean has at least the noise of the norm: a common factor shows fully in the mean of a tensor
    of one sign, and little in most others.

    Of a phase whose noise is nowhere more than the ``allowed_errors`` (statistics, pairs), it need
    not be measured, and may be less.
    """
    noise = np.zeros_like(errors)
    tolerances = pairs["tolerance"].to_numpy()
    negligible_noise = np.zeros(len(pairs))
    if allowed_errors is not None:
        negligible_noise = allowed_errors.min(axis=0)
    negligible_noise[tolerances == 0] = np.inf  # there is no noise where nothing is tolerated
    computed_rows = _find_computed_rows(alignment, pairs, has_lost_gradients=True)
    gradient_rows = computed_rows.by_phase[PHASES.index(BACKWARD)]
    negligible_noise[gradient_rows] /= GRADIENT_FACTOR
    for statistic_noise, statistic_errors in zip(noise, errors, strict=True):
        is_measured = (statistic_errors > 0) & np.isfinite(statistic_errors)
        for rows, sample_rows in computed_rows.iterate_samples(is_measured):
            samples = statistic_errors[sample_rows]
            places = computed_rows.places
            n_before = np.searchsorted(places[sample_rows], places[rows], side="left")
            limit = float(negligible_noise[rows].min()) / _UPPER_QUANTILES
            statistic_noise[rows] = np.where(
                n_before >= _MIN_PAIRS,
                _UPPER_QUANTILES * _measure_quantiles_before(samples, n_before, limit),
                _STATISTIC_QUARTILES * float(np.quantile(samples, _QUARTILE)),
            )
    mean, norm = STATISTICS.index("mean"), STATISTICS.index("norm")
    summation = np.minimum(
        _estimate_summation(alignment, pairs, errors), _MAX_SUMMATION_TOLERANCES * tolerances
    )
    noise[norm] = np.maximum(noise[norm], summation)
    noise[mean] = np.maximum(noise[mean], noise[norm])
    noise_of_gradients = np.maximum(noise[:, gradient_rows], tolerances[gradient_rows])
    noise[:, gradient_rows] = GRADIENT_FACTOR * noise_of_gradients
    limited: Floats = np.minimum(noise, _MAX_TOLERANCES * tolerances)
    limited[norm] = np.maximum(limited[norm], summation)
    return limited


def _measure_quantiles_before(samples: Floats, n_before: Ints, limit: float) -> Floats:
    """Return the 90 % quantile of the first n samples, for each n; NaN for less than eight.

    0 for all if none is larger than the limit, which is much faster to find out.
    """
    counts = np.arange(1, len(samples) + 1)
    # the quantile lies between two of the sorted samples
    upper_places = np.minimum(np.floor(_UPPER_QUANTILE * (counts - 1)) + 2, counts)
    if (np.cumsum(samples <= limit) >= upper_places)[_MIN_PAIRS - 1 :].all():
        return np.zeros(len(n_before))
    quantiles = pd.Series(samples).expanding(_MIN_PAIRS).quantile(_UPPER_QUANTILE)
    quantiles_before: Floats = np.concatenate([[np.nan], quantiles])[n_before]
    return quantiles_before


def _estimate_summation(alignment: Alignment, pairs: pd.DataFrame, errors: Floats) -> Floats:
    """Return (pairs,) by how much the norm of a tensor is off whose other statistics agree.

    A recorder adds n squares in float32, in several sums side by side. If many elements are equal,
    all roundings have one sign (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    4.2), so that the norm is off by n u / 16 at most with eight sums, on each side. ``torch.norm``
    is off by 750 u for 20,480 elements that are five numbers. 0 where another statistic differs.

    Where a side has no mean, only roundings of either sign are allowed: their sum grows with the
    root of n (Higham, 2.8), so that a single sum is off by sqrt(n) u / 2 in the norm, on each side.
    """
    roundoff = get_unit_roundoff("float32")
    sizes = alignment.reference.sizes[pairs["reference"].to_numpy()]
    extreme_factors = compute_extreme_factors(sizes.astype(float))
    sizes = np.maximum(sizes, 0)  # some are unknown
    agrees = errors[STATISTICS.index("norm")] > pairs["tolerance"].to_numpy()
    mean_errors = errors[STATISTICS.index("mean")]
    for name in ("max", "min"):
        scaled_errors = errors[STATISTICS.index(name)] * extreme_factors
        agrees &= scaled_errors <= _EQUAL_ROUNDOFFS * roundoff
    agrees &= ~(mean_errors > _EQUAL_ROUNDOFFS * roundoff)
    largest = roundoff * sizes / _PARALLEL_SUMS
    is_unknown = np.isnan(mean_errors)
    largest = np.where(is_unknown, np.minimum(largest, roundoff * np.sqrt(sizes)), largest)
    return np.where(agrees, largest, 0.0)


def _find_computed_rows(
    alignment: Alignment, pairs: pd.DataFrame, *, has_lost_gradients: bool = False
) -> _ComputedRows:
    """Return the pairs that an op of either side computed.

    ``has_lost_gradients``: gradients that no recorded op wrote are among them, too; their whole
    tensors show a fault that no other does.
    """
    target, reference = alignment.target, alignment.reference
    values_t, values_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    is_computed_t = target.producers[values_t] >= 0
    is_computed = is_computed_t | (reference.producers[values_r] >= 0)
    phases_t, phases_r = (
        _number_phases(flow.classes["phase"])[values]
        for flow, values in ((target, values_t), (reference, values_r))
    )
    phases = np.where(is_computed_t, phases_t, phases_r)
    if has_lost_gradients:  # computed by ops without a record
        backward = PHASES.index(BACKWARD)
        is_computed |= (phases_t == backward) & (phases_r == backward)
    is_sample = is_computed & (pairs["tolerance"].to_numpy() > 0)
    is_sample &= (pairs["evidence"] == "value").to_numpy()
    return _ComputedRows(
        tuple(np.flatnonzero(is_computed & (phases == number)) for number in range(len(PHASES))),
        is_sample,
        target.positions[values_t] + reference.positions[values_r],
    )


def _number_phases(phases: pd.Series[str]) -> Ints:
    """Return the place of each phase in ``PHASES``, and their number for other words."""
    codes, words = pd.factorize(phases)
    numbers = [PHASES.index(word) if word in PHASES else len(PHASES) for word in words]
    numbers_of_rows: Ints = np.array(numbers, dtype=np.int64)[codes]
    return numbers_of_rows
