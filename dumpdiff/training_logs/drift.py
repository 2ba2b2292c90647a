"""Find a change in the mean of a paired difference: a drift, or a shift to another level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray

#: The difference is averaged over blocks, so that there are about this many values.
_N_BLOCKS = 120
_MIN_STEPS = 100  #: in fewer steps, rounding errors that grow look like a trend
_MIN_SEGMENT = 4  #: blocks before and after a change
#: What a model with a change must explain beyond one without, as F statistic of the best of all
#: changes, divided by what correlated noise adds. Of 2,400 pairs without a change, of 100 to 1,200
#: steps (white noise, correlation 0.5 and 0.9, noise that grows), 1 exceeded it.
_MIN_STATISTIC = 40.0
#: A change must reach this share of the loss: smaller ones are rounding of the sums over ranks.
_MIN_SHARE = 2e-4
#: and this many standard deviations of the blocks after it around the model.
_MIN_DEVIATIONS = 3.0


@dataclass(frozen=True)
class Drift:
    """From a step on, the target's loss is another than the reference's."""

    kind: Literal["drift", "shift"]
    step: int  #: the first step after the change
    share: float  #: relative difference at the end (drift) or after the change (shift), with a sign
    slope: float  #: change of that share in 100 steps; 0 for a shift

    def summarize(self) -> str:
        """Return what changes and from which step on, in one clause."""
        size = f"{100 * self.share:+.2g} %"
        if self.kind == "shift":
            return f"the losses differ by {size} from step {self.step} on"
        return (
            f"the losses drift apart from step {self.step} on, by {100 * self.slope:+.2g} % in 100"
            f" steps, to {size} at the end"
        )


def find_drift(
    steps: AnyArray, target_loss: AnyArray, reference_loss: AnyArray, rounding: float
) -> Drift | None:
    """Return the change of the mean relative difference that explains most, None if none is proven.

    Two models are fitted to the means of blocks, for every possible step of the change: another
    level, and a slope that begins there. The better one counts if it explains far more than a
    constant difference does, considering that neighboring blocks are correlated.
    """
    scale = np.maximum(np.abs(reference_loss), np.finfo(float).tiny)
    difference = (target_loss - reference_loss) / scale
    if len(steps) < _MIN_STEPS or not np.isfinite(difference).all():
        return None
    blocks = np.array_split(np.arange(len(steps)), min(_N_BLOCKS, len(steps)))
    means = np.array([difference[block].mean() for block in blocks])
    positions = np.array([float(steps[block].mean()) for block in blocks])
    starts = np.array([float(steps[block[0]]) for block in blocks])
    count = len(means)
    residual_of_mean = float(np.square(means - means.mean()).sum())
    if residual_of_mean == 0:
        return None
    best: tuple[float, Drift, AnyArray] | None = None
    for index in range(_MIN_SEGMENT, count - _MIN_SEGMENT + 1):
        for candidate, residuals in _fit_changes(means, positions, starts, index):
            residual = float(np.square(residuals).sum())
            if best is None or residual < best[0]:
                best = (residual, candidate, residuals)
    if best is None:
        return None
    residual, drift, residuals = best
    variance = max(residual / (count - 3), (rounding / float(np.median(scale))) ** 2 / 3)
    statistic = (residual_of_mean - residual) / variance / _estimate_correlation_factor(residuals)
    deviation_after = float(residuals[starts >= drift.step].std())
    least_share = max(_MIN_SHARE, _MIN_DEVIATIONS * deviation_after)
    if statistic < _MIN_STATISTIC or abs(drift.share) < least_share:
        return None
    return drift


def _fit_changes(
    means: AnyArray, positions: AnyArray, starts: AnyArray, index: int
) -> list[tuple[Drift, AnyArray]]:
    """Return both models of a change at a block, with what they leave unexplained."""
    before, after = means[:index].mean(), means[index:].mean()
    levels = np.where(np.arange(len(means)) < index, before, after)
    step = int(starts[index])
    changes = [(Drift("shift", step, float(after - before), 0.0), means - levels)]
    ramp = np.maximum(positions - positions[index - 1], 0.0)
    design = np.stack([np.ones_like(ramp), ramp], axis=1)
    level, slope = np.linalg.lstsq(design, means, rcond=None)[0]
    drift = Drift("drift", step, float(slope * ramp[-1]), float(100 * slope))
    changes.append((drift, means - level - slope * ramp))
    return changes


def _estimate_correlation_factor(residuals: AnyArray) -> float:
    """Return by how much correlated neighbors raise a sum of squares: (1 + r) / (1 - r)."""
    power = float(np.square(residuals).sum())
    if power == 0:
        return 1.0
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / power
    # A short series shows less correlation than there is (Kendall, 1954).
    correlation += (1 + 4 * correlation) / len(residuals)
    correlation = min(max(correlation, 0.0), 0.95)
    return (1 + correlation) / (1 - correlation)
