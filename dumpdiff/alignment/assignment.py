"""The assignment of rows to columns with the smallest sum of costs."""

from __future__ import annotations

import numpy as np

from ..model.arrays import Floats, Ints


def solve_assignment(costs: Floats) -> tuple[Ints, Ints]:
    """Return (rows, columns) of the assignment of least cost, in the order of the rows.

    It has as many pairs as the shorter axis has entries.

    If the smallest cost of each row is in a column of its own, that is the assignment: no sum is
    smaller. If it also is the only smallest of its row, no other assignment is as good. Most are so
    simple, and scipy, which solves the others, takes a tenth of the time of a small comparison to
    import.
    """
    if costs.shape[0] > costs.shape[1]:
        columns, rows = solve_assignment(costs.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    columns = costs.argmin(axis=1)
    is_smallest = costs == costs.min(axis=1, keepdims=True)
    if len(np.unique(columns)) == len(columns) and (is_smallest.sum(axis=1) == 1).all():
        return np.arange(len(columns)), columns
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs)
    return rows, columns
