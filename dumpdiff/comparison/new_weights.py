"""Judge a new weight by the step that led to it, and the optimizer's states.

A step changes a weight by a thousandth, or by less. Relative to the weight, a doubled learning rate
is as small as that. So what counts is the error relative to the step, ||t' - r'|| / ||r' - r||,
where r is the old weight and r' the new one. Of the steps of both sides the smaller one counts: a
rate that is wrong on one side must not widen what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..alignment.matches import NewWeight
from ..alignment.sides import PreparedSide
from ..alignment.training_step import find_second_moment
from ..alignment.values import Fingerprints
from ..graph import Flow
from ..model.arrays import AnyArray
from ..model.dtypes import get_unit_roundoff
from ..model.recorded_shapes import load_readable_tensor
from .epsilon_places import estimate_effect, find_common_epsilon, measure_remainder
from .scalars import OpScalars
from .statistics import measure_differences

#: Roundings of a weight in a step: decay, step and subtraction, on either side half a unit each.
_ROUNDINGS = 4
#: Relative error of a second moment and of what is made of it: 1 - beta2 in float32 is off by up to
#: u / (1 - beta2), 2**-24 / 1e-3 for the usual 0.999. MindSpore's Adam computes it so, PyTorch's in
#: float64.
STATE_ROUNDING = 2.0**-24 / 1e-3
#: Errors of the gradients in units of the noise of the pair of dumps.
_NOISE_MARGIN = 8
#: The usual epsilon of Adam. MindSpore adds it before the bias correction and PyTorch after it, so
#: two correct steps differ by up to epsilon / sqrt(v), element by element.
_EPSILON = 1e-8
#: Largest relative difference of two steps of one element: one goes up and one goes down.
_MAX_ELEMENT_ERROR = 2.0
#: Chance that a sound gradient has so small an element, below which it is no chance.
_MAX_CHANCE = 0.1
#: Share of the step by which the statistics of two correct new weights may differ.
_STATISTICS_SHARE = 1e-2
#: Tolerances by which a step must change a weight before an error within the tolerance says that
#: the steps agree: a step of twice the size is off by as much as the step changes.
_MIN_STEP_TOLERANCES = 2.0
#: Of a smaller step, an error of this share says so, too.
_MAX_SHARE_OF_STEP = 0.25

HIDDEN_STEP = "the step changes the weight by less than the tolerance"
NOISE_STEP = "Adam's step follows a gradient that is only rounding noise"


def judge_new_weights(
    alignment: Alignment, scalars: Sequence[OpScalars], pairs: pd.DataFrame
) -> None:
    """Set tolerance, error and ``comparable`` of the pairs of new weights and states.

    ``scalars`` are those of each side, see :func:`.scalars.collect_scalars`. Where the step is too
    small to show, the pair is not comparable and ``reason`` says so.
    """
    epsilon = find_common_epsilon(alignment, scalars) if alignment.new_weights else 0.0
    tolerance = pairs["tolerance"].to_numpy(copy=True)
    error = pairs["error"].to_numpy(copy=True)
    comparable = pairs["comparable"].to_numpy(copy=True)
    reason = pairs["reason"].to_numpy(copy=True)
    metric = pairs["metric"].tolist()
    is_judged = np.zeros(len(pairs), dtype=bool)
    row_of_class = _index_rows(alignment) if alignment.states else {}
    for value in alignment.states:
        tolerance[row_of_class[value]] = max(tolerance[row_of_class[value]], STATE_ROUNDING)
    for new_weight, row in zip(alignment.new_weights, find_new_weight_rows(alignment), strict=True):
        if not comparable[row]:
            continue
        step, hidden_reason = None, HIDDEN_STEP
        if metric[row] == "relative_l2":
            step = _measure_step(alignment, new_weight, error[row], epsilon)
        if step is not None:
            size, error[row], tolerance[row], hidden_reason = step
        elif metric[row] == "statistics":
            size, larger_size = _measure_steps_by_statistics(alignment, new_weight)
            if max(new_weight.second_moments) >= 0:
                error[row] = _compare_adam_statistics(alignment, new_weight)
                is_judged[row] = True
            epsilon_effect = _estimate_epsilon_effect(alignment, new_weight, epsilon)
            tolerance[row] = max(
                tolerance[row], _STATISTICS_SHARE * size, epsilon_effect * larger_size
            )
            if _follows_noise(alignment, new_weight):
                tolerance[row] = max(tolerance[row], _MAX_ELEMENT_ERROR * size)
                hidden_reason = NOISE_STEP
        else:
            continue
        is_small = size < _MIN_STEP_TOLERANCES * tolerance[row]
        is_unclear = size == 0 or error[row] > _MAX_SHARE_OF_STEP * size
        if is_small and is_unclear and error[row] <= tolerance[row]:
            comparable[row], reason[row] = False, hidden_reason
    pairs["tolerance"], pairs["error"] = tolerance, error
    pairs.loc[is_judged, "statistic"], pairs.loc[is_judged, "statistic_error"] = "", np.nan
    pairs["comparable"] = comparable
    pairs["reason"] = pd.Series(reason, dtype=object)
    _judge_fused_weights(alignment, pairs)


def _judge_fused_weights(alignment: Alignment, pairs: pd.DataFrame) -> None:
    """Allow the new weights of fused tensors what Adam makes of gradients that are only noise.

    A bias of the keys of attention has such a gradient, and may be a part of one tensor with those
    of the queries and values. Sets tolerance, ``comparable`` and ``reason`` of their pairs.
    """
    tolerance = pairs["tolerance"].to_numpy(copy=True)
    error = pairs["error"].to_numpy()
    noise = STATE_ROUNDING + _NOISE_MARGIN * alignment.tolerance
    rounding = _ROUNDINGS * get_unit_roundoff("float32")
    noisy_rows = []
    for row, group in enumerate(pairs["group"].tolist()):
        if group is None or not error[row] > tolerance[row]:
            continue
        values_of_sides = (group.target, group.reference)
        steps = [
            _measure_fused_step(side, prints, values, alignment.tolerance)
            for side, prints, values in zip(
                alignment.sides, alignment.fingerprints, values_of_sides, strict=True
            )
        ]
        sizes_and_errors = [step for step in steps if step is not None]
        if len(sizes_and_errors) < len(steps):
            continue
        sizes, adam_errors = zip(*sizes_and_errors, strict=True)
        if not max(adam_errors) > 0:
            continue
        tolerance[row] = max(tolerance[row], rounding + min(sizes) * noise + max(adam_errors))
        if error[row] <= tolerance[row]:
            noisy_rows.append(row)
    pairs["tolerance"] = tolerance
    pairs.loc[noisy_rows, "comparable"] = False
    pairs.loc[noisy_rows, "reason"] = NOISE_STEP


def _measure_fused_step(
    side: PreparedSide, prints: Fingerprints, new_values: Sequence[int], noise: float
) -> tuple[float, float] | None:
    """Return the size of the step of several weights, and what noise makes of it.

    Both are relative to the new weights. None if the rule is not Adam's. Where tensors are missing,
    statistics stand for them.
    """
    updates = {update.new_weight: (weight, update) for weight, update in side.updates.items()}
    if any(value not in updates for value in new_values):
        return None
    steps, weights, moments = [], [], []
    for new_value in new_values:
        old_value, update = updates[new_value]
        second_moment = find_second_moment(prints, update)
        if second_moment < 0:
            return None
        old, new, moment = (
            _load_values(side.flow, value) for value in (old_value, new_value, second_moment)
        )
        if old is None or new is None or moment is None or old.shape != new.shape:
            return _measure_fused_statistics(side, prints, new_values, noise)
        steps.append(np.ravel(new - old))
        weights.append(np.ravel(new))
        moments.append(np.ravel(moment))
    norm = float(np.linalg.norm(np.concatenate(weights)))
    if not norm > 0:
        return None
    size = float(np.linalg.norm(np.concatenate(steps))) / norm
    return size, size * compute_adam_error(np.concatenate(moments), noise)


def _measure_fused_statistics(
    side: PreparedSide, prints: Fingerprints, new_values: Sequence[int], noise: float
) -> tuple[float, float]:
    """Return the same from statistics: the largest step, all of it if one of them is noise."""
    size, is_noise = 0.0, False
    for old_value, update in side.updates.items():
        if update.new_weight in new_values:
            size = max(size, measure_change(prints, update.new_weight, old_value))
            is_noise |= _holds_noise(side.flow, find_second_moment(prints, update), noise)
    return size, _MAX_ELEMENT_ERROR * size * is_noise


def _follows_noise(alignment: Alignment, new_weight: NewWeight) -> bool:
    """Return whether the gradient of some element is nothing but noise, by Adam's moments."""
    flows = (alignment.target, alignment.reference)
    return any(
        _holds_noise(flow, moment, alignment.tolerance)
        for flow, moment in zip(flows, new_weight.second_moments, strict=True)
    )


def _holds_noise(flow: Flow, second_moment: int, noise: float) -> bool:
    """Return whether the smallest second moment is that of noise, and not the smallest by chance.

    False if there is no second moment, which is -1. Of n elements of a normal gradient, one is
    within a n-th of its root mean square. See :func:`compute_adam_error` for what noise is.
    """
    lowest, mean = (float(flow.list_column(name)[second_moment]) for name in ("min", "mean"))
    if second_moment < 0 or not mean > 0:
        return False
    share = noise + _EPSILON / math.sqrt(mean)
    is_small = math.sqrt(max(lowest, 0.0) / mean) < share
    return is_small and share * float(flow.sizes[second_moment]) < _MAX_CHANCE


def find_new_weight_rows(alignment: Alignment) -> list[int]:
    """Return the row of the pairs of each of ``alignment.new_weights``."""
    if not alignment.new_weights:
        return []
    row_of_class = _index_rows(alignment)
    return [row_of_class[new_weight.target] for new_weight in alignment.new_weights]


def _index_rows(alignment: Alignment) -> dict[int, int]:
    """Return target class -> row of its pair; slot pairs come after these rows."""
    return {value: row for row, value in enumerate(alignment.classes["target"].tolist())}


def _measure_step(
    alignment: Alignment, new_weight: NewWeight, error: float, epsilon: float
) -> tuple[float, float, float, str] | None:
    """Return size of the smaller step, error and tolerance, all relative to the new weight.

    The error is without what the places of the common ``epsilon`` explain. The last is why a step
    that is smaller than the tolerance does not show. None if a tensor of one side cannot be read.
    """
    sides = (
        (alignment.target, new_weight.old_target, new_weight.target),
        (alignment.reference, new_weight.old_reference, new_weight.reference),
    )
    steps, sizes, roundings = [], [], []
    for flow, old_value, new_value in sides:
        old = _load_values(flow, old_value)
        new = _load_values(flow, new_value)
        if old is None or new is None or old.shape != new.shape:
            return None
        norm = float(np.linalg.norm(new))
        if not norm > 0:
            return None
        steps.append(new - old)
        sizes.append(float(np.linalg.norm(new - old)) / norm)
        dtype = str(flow.list_column("dtype")[new_value])
        roundings.append(_ROUNDINGS * get_unit_roundoff(dtype))
    size, rounding = min(sizes), max(roundings)
    noise = STATE_ROUNDING + _NOISE_MARGIN * alignment.tolerance
    tolerance = rounding + size * noise
    if error > tolerance and epsilon > 0:
        moment = _load_values(alignment.reference, new_weight.second_moments[1])
        if moment is not None and moment.size == steps[0].size == steps[1].size:
            remainder = measure_remainder((steps[0], steps[1]), moment, epsilon) / norm
            error = remainder if remainder <= tolerance else error
    if error > tolerance:
        adam_error = _find_adam_error(alignment, new_weight, (sizes[0], sizes[1]))
        if adam_error is not None:
            return size, error, tolerance + adam_error, NOISE_STEP
    return size, error, tolerance, HIDDEN_STEP


def _estimate_epsilon_effect(alignment: Alignment, new_weight: NewWeight, epsilon: float) -> float:
    """Return the share of the larger step that the places of the common ``epsilon`` may change."""
    moment = new_weight.second_moments[1]
    if moment < 0:
        return 0.0
    return estimate_effect(float(alignment.reference.list_column("mean")[moment]), epsilon)


def _find_adam_error(
    alignment: Alignment, new_weight: NewWeight, sizes: tuple[float, float]
) -> float | None:
    """Return what noise in the gradients makes of the steps of these ``sizes``, of both the more.

    None if neither side has a second moment. By chance, the gradient of one run may be so large
    that its step looks like one.
    """
    adam_errors = []
    for flow, moment, size in zip(
        (alignment.target, alignment.reference), new_weight.second_moments, sizes, strict=True
    ):
        second_moment = _load_values(flow, moment)
        if second_moment is not None:
            adam_errors.append(size * compute_adam_error(second_moment, alignment.tolerance))
    return max(adam_errors, default=None)


def compute_adam_error(second_moment: AnyArray, noise: float) -> float:
    """Return the relative L2 error of a step of Adam that two correct runs may have.

    A step divides each element of the gradient by its size, so an element that is no larger than
    the noise of the gradient (``noise`` times its root mean square), or than epsilon, may go
    either way. ``second_moment`` is that of one run.
    """
    sizes = np.sqrt(np.abs(np.ravel(second_moment).astype(np.float64)))
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return 0.0
    smallest = noise * float(np.sqrt(np.mean(sizes**2))) + _EPSILON
    element_errors = np.minimum(smallest / sizes, _MAX_ELEMENT_ERROR)
    return float(np.sqrt(np.mean(element_errors**2)))


def _measure_steps_by_statistics(
    alignment: Alignment, new_weight: NewWeight
) -> tuple[float, float]:
    """Return how far the statistics of new and old weight are apart, the side of less first."""
    prints_t, prints_r = alignment.fingerprints
    sizes = []
    for prints, new_value, old_value in (
        (prints_t, new_weight.target, new_weight.old_target),
        (prints_r, new_weight.reference, new_weight.old_reference),
    ):
        sizes.append(measure_change(prints, new_value, old_value))
    return min(sizes), max(sizes)


def measure_change(prints: Fingerprints, new_value: int, old_value: int) -> float:
    """Return how far the statistics of two values of one side are apart."""
    new, old = np.array([new_value]), np.array([old_value])
    return float(measure_differences(prints, new, prints, old).get_largest()[0])


def _compare_adam_statistics(alignment: Alignment, new_weight: NewWeight) -> float:
    """Return the second largest error that the statistics of two new weights show.

    With Adam, one extreme may be an element whose step is only noise, see
    :func:`compute_adam_error`. So the largest of three or four errors does not count.
    """
    prints_t, prints_r = alignment.fingerprints
    target, reference = np.array([new_weight.target]), np.array([new_weight.reference])
    errors = measure_differences(prints_t, target, prints_r, reference).errors
    known_errors = np.sort(errors[np.isfinite(errors)])
    if not len(known_errors):
        return float("inf")
    return float(known_errors[-2 if len(known_errors) > 2 else -1])


def _load_values(flow: Flow, value: int) -> AnyArray | None:
    """Return the whole tensor of a class in float64, None if there is none or no class (-1)."""
    if value < 0:
        return None
    array = load_readable_tensor(flow.trace, int(flow.list_column("tensor")[value]))
    return None if array is None else array.astype(np.float64)
