"""The shape of a difference over steps: where it begins for good, whether it wanders around zero, what stands out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray

_RISE = np.log(
    3.0
)  #: a lasting departure is at least this much larger, on average, than what was before it
_TELLING = 25.0  #: and its gain is this many times the variance within both parts (a t of 5); so is the likelihood
_FEWEST = 4  #: steps on either side of a departure
_WINDOW = 21  #: steps whose median a spike stands out of
_STANDS_OUT = 8.0  #: times the usual distance from that median


def lasting_departure(difference: AnyArray, floor: float) -> int | None:
    """The index from which |difference| is larger for good, None if there is none.

    The split of log |d| into two means that explains most of its variance (maximum likelihood for one change of the
    mean of normal values); logarithms, since a departure grows by factors. It counts if the second part is three times
    the first and the change is beyond five standard errors, of the logarithms and of the sizes themselves: a few values
    that happen to lie near zero have logarithms far down. ``floor`` is what the log's rounding alone leaves.
    """
    sizes = np.maximum(np.abs(difference), max(floor, 1e-300))
    values = np.log(sizes)
    count = len(values)
    if count < 2 * _FEWEST or not np.isfinite(values).all():
        return None
    before = np.arange(_FEWEST, count - _FEWEST + 1)
    sums = np.cumsum(values)
    first = sums[before - 1] / before
    second = (sums[-1] - sums[before - 1]) / (count - before)
    gain = before * (count - before) / count * np.square(second - first)
    gain[second - first < _RISE] = 0.0
    best = int(np.argmax(gain))
    within = (np.square(values - values.mean()).sum() - gain[best]) / max(count - 2, 1)
    telling = (
        gain[best] > max(_TELLING * within, 0.0)
        and _likelihood(sizes, int(before[best])) > _TELLING
    )
    return int(before[best]) if telling else None


def _likelihood(sizes: AnyArray, split: int) -> float:
    """Twice the log of the likelihood ratio of two means to one, of exponential values: chi-squared, one degree."""
    parts = (sizes[:split], sizes[split:])
    return float(
        2
        * (
            len(sizes) * np.log(sizes.mean())
            - sum(len(part) * np.log(part.mean()) for part in parts)
        )
    )


@dataclass(frozen=True)
class Wander:
    """How a difference lies about zero."""

    bias: float  #: its mean, target minus reference
    error: float  #: standard error of that mean, from means of batches: neighbouring steps are not independent
    positive: float  #: share of steps where the target is above

    @property
    def around_zero(self) -> bool:
        """Whether the mean is within three standard errors of zero."""
        return abs(self.bias) <= 3 * self.error or self.bias == 0


def wander(difference: AnyArray) -> Wander:
    """How ``difference`` lies about zero; of fewer than 16 steps nothing can be told, and the error is infinite."""
    count = len(difference)
    if count < 16:
        return Wander(
            float(np.mean(difference)) if count else np.nan, np.inf, float(np.mean(difference > 0))
        )
    batches = int(np.sqrt(count))
    means = np.array([batch.mean() for batch in np.array_split(difference, batches)])
    error = float(means.std(ddof=1) / np.sqrt(batches))
    nonzero = difference[difference != 0]
    positive = float(np.mean(nonzero > 0)) if len(nonzero) else 0.5
    return Wander(float(difference.mean()), error, positive)


def spikes(loss: AnyArray) -> AnyArray:
    """Indices where a loss stands out upward of the median of the 21 steps around it, by 8 times the usual noise.

    The noise is that of second differences, which a slope does not enter: their median deviation over sqrt(3/2).
    """
    if len(loss) < _WINDOW:
        return np.array([], dtype=np.int64)
    padded = np.pad(loss, _WINDOW // 2, mode="edge")
    centre = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    bends = loss[1:-1] - (loss[:-2] + loss[2:]) / 2
    usual = 1.4826 * float(np.nanmedian(np.abs(bends))) / np.sqrt(1.5)
    return np.flatnonzero(
        loss - centre > max(_STANDS_OUT * usual, 1e-3 * float(np.nanmedian(np.abs(loss))))
    )


def blocks(values: AnyArray, count: int = 10) -> AnyArray:
    """Root mean squares of ``count`` stretches of equal length, for comparing how large two differences are."""
    return np.array(
        [
            np.sqrt(np.mean(np.square(part)))
            for part in np.array_split(values, min(count, len(values)))
        ]
    )
