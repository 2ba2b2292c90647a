"""Fit the one number that a candidate leaves open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..model.arrays import AnyArray

_GOLDEN = (np.sqrt(5) - 1) / 2


def fit_factor(array: AnyArray, expected: AnyArray) -> float:
    """Return c that minimizes ||c array - expected||; NaN if ``array`` is zero."""
    energy = float(np.vdot(array, array))
    if energy > 0:
        return float(np.vdot(array, expected)) / energy
    return float("nan")


def minimize(cost: Callable[[float], float], grid: AnyArray, n_rounds: int = 40) -> float:
    """Return the argument with the least cost.

    Take the best point of a sorted grid, then search between its neighbors by golden section.
    """
    grid_costs = [cost(float(x)) for x in grid]
    best_row = int(np.argmin(grid_costs))
    low, high = float(grid[max(0, best_row - 1)]), float(grid[min(len(grid) - 1, best_row + 1)])
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    cost_a, cost_b = cost(a), cost(b)
    for _ in range(n_rounds):
        if cost_a < cost_b:
            high, b, cost_b = b, a, cost_a
            a = high - _GOLDEN * (high - low)
            cost_a = cost(a)
        else:
            low, a, cost_a = a, b, cost_b
            b = low + _GOLDEN * (high - low)
            cost_b = cost(b)
    middle = 0.5 * (low + high)
    return middle if cost(middle) <= grid_costs[best_row] else float(grid[best_row])
