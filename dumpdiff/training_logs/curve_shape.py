"""Describe the shape of a difference over steps: lasting divergence, bias around zero, spikes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray

#: After a lasting divergence, log |difference| is on average at least this much larger than before
#: it.
_MIN_LOG_RISE = np.log(3.0)
#: The split must explain this many times the variance within both segments (a t of 5), and twice
#: its log likelihood ratio must exceed this as well (chi-squared with one degree of freedom).
_MIN_SIGNIFICANCE = 25.0
_MIN_SEGMENT = 4  #: steps required on each side of a split
_TINY = 1e-300  #: lower bound of sizes, so that their logarithm is finite

#: Below this number of steps, the standard error of a mean is reported as infinite.
_MIN_FLUCTUATION_STEPS = 16
_BIAS_ERRORS = 3  #: a mean within this many standard errors is around zero

_SPIKE_WINDOW = 21  #: steps in the running median that a spike is measured against
_SPIKE_FACTOR = 8.0  #: times the usual noise that a spike must exceed the median by
_MIN_SPIKE = 1e-3  #: a spike must also exceed the median by this share of the median loss
_MAD_TO_DEVIATION = (
    1.4826  #: standard deviation of normal values over their median absolute deviation
)


def find_lasting_divergence(difference: AnyArray, floor: float) -> int | None:
    """Return the index from which |difference| is permanently larger, or None.

    The index is the split of log |difference| into two means that explains most of its variance
    (the maximum likelihood estimate for one change of the mean of normal values). Logarithms are
    used because a divergence grows by factors. The split counts only if the second segment is three
    times as large as the first, and if the change exceeds five standard errors both in the
    logarithms and in the sizes: a few values that are close to zero by chance have very small
    logarithms. ``floor`` is the difference that the rounding of the log can cause.
    """
    sizes = np.maximum(np.abs(difference), max(floor, _TINY))
    values = np.log(sizes)
    count = len(values)
    if count < 2 * _MIN_SEGMENT or not np.isfinite(values).all():
        return None
    n_before = np.arange(_MIN_SEGMENT, count - _MIN_SEGMENT + 1)
    sums = np.cumsum(values)
    mean_before = sums[n_before - 1] / n_before
    mean_after = (sums[-1] - sums[n_before - 1]) / (count - n_before)
    rise = mean_after - mean_before
    gain = n_before * (count - n_before) / count * np.square(rise)
    gain[rise < _MIN_LOG_RISE] = 0.0
    best_gain = gain.max()
    split = int(n_before[np.argmax(gain)])
    residual = np.square(values - values.mean()).sum() - best_gain
    variance = residual / max(count - 2, 1)
    if not best_gain > max(_MIN_SIGNIFICANCE * variance, 0.0):
        return None
    if not _compute_split_likelihood(sizes, split) > _MIN_SIGNIFICANCE:
        return None
    return split


def _compute_split_likelihood(sizes: AnyArray, split: int) -> float:
    """Return twice the log likelihood ratio of two means to one mean, for exponential values.

    It is distributed as chi-squared with one degree of freedom.
    """
    one_mean = len(sizes) * np.log(sizes.mean())
    before, after = sizes[:split], sizes[split:]
    two_means = len(before) * np.log(before.mean()) + len(after) * np.log(after.mean())
    return float(2 * (one_mean - two_means))


@dataclass(frozen=True)
class Fluctuation:
    """How a difference is distributed around zero."""

    bias: float  #: its mean, target minus reference
    #: standard error of that mean, from means of batches because neighboring steps are correlated
    standard_error: float
    positive_share: float  #: share of steps in which the target is larger

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean is within three standard errors of zero."""
        return abs(self.bias) <= _BIAS_ERRORS * self.standard_error or self.bias == 0


def measure_fluctuation(difference: AnyArray) -> Fluctuation:
    """Measure how ``difference`` is distributed around zero.

    The error is infinite below 16 steps.
    """
    count = len(difference)
    if count < _MIN_FLUCTUATION_STEPS:
        mean = float(np.mean(difference)) if count else np.nan
        return Fluctuation(mean, np.inf, float(np.mean(difference > 0)))
    n_batches = int(np.sqrt(count))
    means = np.array([batch.mean() for batch in np.array_split(difference, n_batches)])
    error = float(means.std(ddof=1) / np.sqrt(n_batches))
    nonzero = difference[difference != 0]
    positive = float(np.mean(nonzero > 0)) if len(nonzero) else 0.5
    return Fluctuation(float(difference.mean()), error, positive)


def find_spikes(loss: AnyArray) -> AnyArray:
    """Return the indices where a loss is far above the median of the 21 steps around it.

    Far is 8 times the noise. The noise is estimated from second differences, which a slope does not
    change: their median deviation over sqrt(3/2).
    """
    if len(loss) < _SPIKE_WINDOW or not np.isfinite(loss).any():
        return np.array([], dtype=np.int64)
    padded = np.pad(loss, _SPIKE_WINDOW // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SPIKE_WINDOW)
    median = np.nanmedian(windows, axis=1)
    second_differences = loss[1:-1] - (loss[:-2] + loss[2:]) / 2
    deviation = float(np.nanmedian(np.abs(second_differences)))
    noise = _MAD_TO_DEVIATION * deviation / np.sqrt(1.5)
    limit = max(_SPIKE_FACTOR * noise, _MIN_SPIKE * float(np.nanmedian(np.abs(loss))))
    return np.flatnonzero(loss - median > limit)


def compute_block_rms(values: AnyArray, count: int = 10) -> AnyArray:
    """Return the root mean squares of ``count`` blocks of equal length."""
    blocks = np.array_split(values, min(count, len(values)))
    return np.array([np.sqrt(np.mean(np.square(block))) for block in blocks])
