"""Fit the one number that a candidate leaves open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..model.arrays import AnyArray

_GOLDEN = (np.sqrt(5) - 1) / 2
#: Fewest elements from which a number is solved for.
MIN_FITTED = 8
#: Rounds in which a number is solved for, its relative step, and the share of the error that the
#: first rounds must remove: a change that explains the value explains nearly all of it.
_FIT_ROUNDS, _FIT_STEP, _MAX_FIRST_SHARE = 8, 1e-4, 0.7


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


def fit_number(
    run: Callable[[float], AnyArray | None], start: float, faulty: AnyArray
) -> float | None:
    """Return the number for which ``run`` is nearest to ``faulty``, by Gauss-Newton.

    None if the first round does not remove much of the error.
    """
    value, output = start, run(start)
    if output is None:
        return None
    first_error = error = float(np.linalg.norm(output - faulty))
    for _ in range(_FIT_ROUNDS):
        step = _FIT_STEP * (abs(value) or 1.0)
        moved_output = run(value + step)
        if moved_output is None:
            return None
        slope = (moved_output - output) / step
        energy = float(np.vdot(slope, slope))
        if not (np.isfinite(energy) and energy > 0):
            return None
        new_value = value + float(np.vdot(slope, faulty - output)) / energy
        new_output = run(new_value)
        if new_output is None:
            return None
        new_error = float(np.linalg.norm(new_output - faulty))
        if not new_error < error:
            break
        has_converged = new_error > _MAX_FIRST_SHARE * error
        value, output, error = new_value, new_output, new_error
        if has_converged:
            break
    return value if error <= _MAX_FIRST_SHARE * first_error else None
