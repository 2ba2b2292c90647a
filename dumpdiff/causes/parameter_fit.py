"""Small fits: the one number that a candidate leaves open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..model.arrays import AnyArray

_GOLDEN = (np.sqrt(5) - 1) / 2


def fit_factor(made: AnyArray, like: AnyArray) -> float:
    """c that makes ||c made - like|| least; NaN if ``made`` is zero."""
    energy = float(np.vdot(made, made))
    return float(np.vdot(made, like)) / energy if energy > 0 else float("nan")


def minimize(cost: Callable[[float], float], grid: AnyArray, rounds: int = 40) -> float:
    """Where a cost is least: the best of a sorted grid, then golden section between its neighbours."""
    costs = [cost(float(x)) for x in grid]
    best = int(np.argmin(costs))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    cost_a, cost_b = cost(a), cost(b)
    for _ in range(rounds):
        if cost_a < cost_b:
            high, b, cost_b = b, a, cost_a
            a = high - _GOLDEN * (high - low)
            cost_a = cost(a)
        else:
            low, a, cost_a = a, b, cost_b
            b = low + _GOLDEN * (high - low)
            cost_b = cost(b)
    middle = 0.5 * (low + high)
    return middle if cost(middle) <= costs[best] else float(grid[best])
