"""Pairs by position, for lists in one order in which the modules of a layer may be reordered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...model.arrays import Flags, Floats
from .match import (
    FINE,
    LAYER_SPAN,
    LOOSE,
    MAX_NORMS,
    NEAR,
    Item,
    ItemLists,
    Match,
    compute_cost,
    compute_distances,
    compute_elementwise_distances,
    compute_score,
)

#: Two lists are in one order if this share of the entries is near, ...
_MIN_NEAR_SHARE = 0.4
#: ... or if the logarithms of their entries have this correlation.
_MIN_CORRELATION = 0.95
#: A match by order also needs at least the score of a match by value, less this. It is the weight
#: of the correlation in the score, too.
_ORDER_BONUS = 0.3
#: A correlation of fewer norms is no evidence.
_MIN_NORMS = 5
#: A norm changes its position only if the new distance is at most this share of the old one.
_NEARER = 0.1
#: If nearly all norms differ: the positions that a norm may move (modules of a layer), ...
_MAX_SHIFT = 4
#: ... the cost of each position moved, in units of distance, ...
_SHIFT_COST = 0.05
#: ... and the cost of a larger shift, which is never chosen.
_FAR_SHIFT_COST = 1e3


def match_in_order(lists: ItemLists, scale: float, value_score: float) -> Match | None:
    """Match two lists of the same length by position.

    Return None if they are not in one order, or if a match by value, of score ``value_score``, is
    much better.
    """
    if not np.isfinite(compute_elementwise_distances(*lists, scale)).all():
        return None
    for partners in (_swap_positions(lists, scale), _assign_nearby(lists, scale)):
        reference_items = [lists[1][position] for position in partners]
        distances = compute_elementwise_distances(lists[0], reference_items, scale)
        near_share = float(np.mean(distances <= NEAR))
        closeness = float(np.mean(1 - compute_cost(distances, LOOSE)))
        correlation = _compute_correlation(lists, partners)
        in_order = near_share >= _MIN_NEAR_SHARE or correlation >= _MIN_CORRELATION
        if in_order and value_score < closeness + _ORDER_BONUS:
            score = compute_score(closeness + _ORDER_BONUS * max(correlation, 0.0), scale)
            return Match(lists, tuple(enumerate(partners)), "order", scale, score)
    return None


def _swap_positions(lists: ItemLists, scale: float) -> list[int]:
    """Return the partner of each position if most norms agree and some changed places.

    Norms change places among themselves only if each of them is ten times nearer to its new
    partner. A norm of zero (a missing gradient) is near to nothing: it takes a position that
    another norm leaves.
    """
    from scipy.optimize import linear_sum_assignment

    partners = list(range(len(lists[0])))
    distances = compute_elementwise_distances(*lists, scale)
    positions = np.flatnonzero(distances > FINE)
    if not 1 < len(positions) <= MAX_NORMS:
        return partners
    target_items = [lists[0][position] for position in positions]
    reference_items = [lists[1][position] for position in positions]
    pair_distances = compute_distances(target_items, reference_items, scale)
    in_reach: Flags = np.abs(positions[:, None] - positions[None, :]) <= LAYER_SPAN
    max_distances = np.maximum(FINE, _NEARER * distances[positions])[:, None]
    is_near = in_reach & (pair_distances <= max_distances)
    has_zero = _flag_zeros(target_items)[:, None] | _flag_zeros(reference_items)[None, :]
    is_cut = in_reach & has_zero
    costs = np.where(is_cut, 1.0 - NEAR, np.where(is_near, pair_distances, 1.0))
    # Staying in place is cheaper than moving to a position where nothing is near.
    np.fill_diagonal(costs, 1.0 - NEAR)
    destinations = linear_sum_assignment(costs)[1].tolist()
    may_move = is_near | is_cut
    for cycle in _list_cycles(destinations):
        if len(cycle) > 1 and all(may_move[source, destinations[source]] for source in cycle):
            for source in cycle:
                partners[int(positions[source])] = int(positions[destinations[source]])
    return partners


def _flag_zeros(items: Sequence[Item]) -> Flags:
    return np.array([item.value == 0 for item in items])


def _list_cycles(destinations: Sequence[int]) -> Iterator[list[int]]:
    """Yield the cycles of a permutation: each element moves to the place of the next one."""
    visited: set[int] = set()
    for start in range(len(destinations)):
        cycle = []
        element = start
        while element not in visited:
            visited.add(element)
            cycle.append(element)
            element = destinations[element]
        if cycle:
            yield cycle


def _assign_nearby(lists: ItemLists, scale: float) -> list[int]:
    """Return the partner of each position, a few positions away at most.

    This is for lists of which nearly all norms differ.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(lists[0])
    if count > MAX_NORMS:
        return list(range(count))
    shifts = np.abs(np.arange(count)[:, None] - np.arange(count)[None, :])
    costs = np.minimum(compute_distances(*lists, scale), 1.0) + _SHIFT_COST * shifts
    costs = np.where(shifts <= _MAX_SHIFT, costs, _FAR_SHIFT_COST)
    partners: list[int] = linear_sum_assignment(costs)[1].tolist()
    return partners


def _compute_correlation(lists: ItemLists, partners: Sequence[int]) -> float:
    """Return the correlation of the logarithms of partners, 0 if there are too few.

    Zeros, infinities and NaN are left out.
    """
    target_values = [item.value for item in lists[0]]
    reference_values = [lists[1][position].value for position in partners]
    values: Floats = np.array([target_values, reference_values])
    values = values[:, np.all(np.isfinite(values) & (values > 0), axis=0)]
    logarithms = np.log(values)
    if logarithms.shape[1] < _MIN_NORMS or not np.all(logarithms.std(axis=1) > 0):
        return 0.0
    return float(np.corrcoef(logarithms)[0, 1])
