"""Where Adam adds its epsilon: two places are no difference of the runs.

With v the second moment and c the bias correction sqrt(1 - beta2^t), PyTorch divides by
sqrt(v) / c + epsilon, MindSpore's fused op by (sqrt(v) + epsilon) / c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..alignment import Alignment
from ..graph import Flow
from ..model.arrays import AnyArray
from ..model.trace import OPTIMIZER
from .scalars import MAX_DIFFERENCE, OpScalars

_NAMES = ("eps", "epsilon")
#: A larger number that is added to elements is no epsilon.
_MAX_EPSILON = 1e-3
#: Smallest bias correction: the first step with beta2 = 0.9999.
_MIN_CORRECTION = 1e-2


def find_common_epsilon(alignment: Alignment, scalars: Sequence[OpScalars]) -> float:
    """Return the epsilon that the updates of both sides record, 0 if there is no such one.

    Also 0 if both sides compose the update of ops: then the place of epsilon is recorded, too.
    """
    sides = (
        (alignment.target, alignment.target_kinds, scalars[0]),
        (alignment.reference, alignment.reference_kinds, scalars[1]),
    )
    named = [_find_only_one(_collect_named(flow, found)) for flow, _, found in sides]
    added = [_find_only_one(_collect_added(*side)) for side in sides]
    if not any(named):
        return 0.0
    low, high = sorted(name or add for name, add in zip(named, added, strict=True))
    return high if high - low <= MAX_DIFFERENCE * high else 0.0


def _collect_named(flow: Flow, scalars: OpScalars) -> set[float]:
    """Return the epsilons that ops of the optimizer have as an argument."""
    return {
        scalar.number
        for op, op_scalars in scalars.items()
        if flow.phases[op] == OPTIMIZER
        for scalar in op_scalars
        if scalar.argument in _NAMES
    }


def _collect_added(flow: Flow, kinds: Sequence[str], scalars: OpScalars) -> set[float]:
    """Return the small numbers that the optimizer adds to elements. (A clip adds one to a norm.)"""
    return {
        scalar.number
        for op, op_scalars in scalars.items()
        if flow.phases[op] == OPTIMIZER and kinds[op] == "add"
        if any(flow.sizes[operand] > 1 for operand in flow.operands[op])
        for scalar in op_scalars
        if 0 < scalar.number <= _MAX_EPSILON
    }


def _find_only_one(numbers: set[float]) -> float:
    """Return the only number, 0 if there is none, or several."""
    return next(iter(numbers)) if len(numbers) == 1 else 0.0


def measure_remainder(
    steps: tuple[AnyArray, AnyArray], second_moment: AnyArray, epsilon: float
) -> float:
    """Return the L2 norm of what the places of epsilon do not explain of two steps' difference.

    One step is the other one times (sqrt(v) + c epsilon) / (sqrt(v) + epsilon); c is fitted.
    """
    from scipy.optimize import minimize_scalar  # takes 0.2 s to import, and few dumps need it

    root = np.sqrt(np.abs(np.ravel(second_moment)))
    first, second = np.ravel(steps[0]), np.ravel(steps[1])

    def measure(log_correction: float, before: AnyArray, after: AnyArray) -> float:
        ratio = (root + math.exp(log_correction) * epsilon) / (root + epsilon)
        return float(np.linalg.norm(before - after * ratio))

    fits = (
        minimize_scalar(
            measure, bounds=(math.log(_MIN_CORRECTION), 0.0), args=pair, method="bounded"
        )
        for pair in ((first, second), (second, first))
    )
    return min(float(fit.fun) for fit in fits)


def estimate_effect(mean_second_moment: float, epsilon: float) -> float:
    """Return the share of the larger step by which the places of epsilon differ, from v's mean.

    For a normal gradient of deviation s, the elements g of one step differ by up to
    e / (|g| + e), whose mean square is e sqrt(2 / pi) / s as far as e is small.
    """
    if not mean_second_moment > 0:
        return 0.0
    share = epsilon / math.sqrt(mean_second_moment)
    return math.sqrt(min(math.sqrt(2.0 / math.pi) * share, 1.0))
