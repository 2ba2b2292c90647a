"""The assignment of rows to columns with the smallest sum of costs."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from dumpdiff.alignment.assignment import solve_assignment


def list_pairs(costs):
    rows, columns = solve_assignment(np.array(costs, dtype=float))
    return sorted(zip(rows.tolist(), columns.tolist(), strict=True))


def test_each_row_gets_its_smallest_cost():
    assert list_pairs([[3, 1, 2], [0, 5, 6], [9, 8, 4]]) == [(0, 1), (1, 0), (2, 2)]


def test_rows_that_want_one_column_share_the_costs():
    """The first row alone would take column 0, but the second loses more by leaving it."""
    assert list_pairs([[1, 2], [1, 9]]) == [(0, 1), (1, 0)]


def test_one_side_may_be_longer():
    costs = [[5, 1, 7], [2, 6, 8]]
    assert list_pairs(costs) == [(0, 1), (1, 0)]
    assert list_pairs(np.transpose(costs)) == [(0, 1), (1, 0)]


@pytest.mark.parametrize("shape", [(2, 2), (4, 4), (3, 6), (6, 3)])
def test_no_assignment_costs_less(shape):
    for seed in range(50):
        costs = np.random.default_rng(seed).random(shape)
        rows, columns = linear_sum_assignment(costs)
        assert list_pairs(costs) == sorted(zip(rows.tolist(), columns.tolist(), strict=True))
