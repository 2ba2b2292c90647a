"""Pairs of norms of which at least one side has no names: by size, position and value.

Frameworks list parameters nearly in the order of the model, but Megatron-LM's optimizer puts
decayed parameters first, and the modules of a layer may have another order. So each side is also
arranged as the other side may list it; the arrangement with the best score counts. Lists in one
order are paired in that order, others by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...rulebook import Rules
from ..norms import Norms, choose_scale
from .arrangements import generate_arrangements
from .match import (
    FINE,
    LAYER_SPAN,
    LOOSE,
    MAX_NORMS,
    NEAR,
    Item,
    ItemLists,
    Match,
    Names,
    ParameterPair,
    ParameterPairs,
    build_items,
    collect_paired_indices,
    combine_items,
    compute_cost,
    compute_distances,
    compute_elementwise_distances,
    compute_score,
)
from .order_pairs import match_in_order

#: Beyond this distance a value is no evidence, if some norms must stay unpaired.
_TIGHT = 0.02
#: The same if both sides have names: then only norms that are almost equal are paired.
_STRICT = 0.01
#: Share of the longer list that may stay unpaired on each side: with more unpaired norms, the
#: lists are of different models and nothing is paired.
_MAX_UNPAIRED = 0.5
#: A norm whose rounding error is larger than this share is not counted as ambiguous.
_COARSE = 0.1
#: Cost of another position, if it is LAYER_SPAN positions away or more; the farthest value costs 1.
_POSITION_COST = 0.25
#: Cost of a norm that stays unpaired.
_UNPAIRED_COST = 0.45
#: Cost of a pair of different sizes: such a pair is never chosen.
_SIZE_COST = 1e6
#: Lists of one framework are in one order if this share of their norms is near in place.
_ONE_ORDER_SHARE = 0.8
#: Logarithmic distance up to which the norm of parts together is that of a fused parameter.
_PARTS_DISTANCE = 5e-3
#: Parts of a fused parameter that are looked for, at most.
_MAX_PARTS = 4


def pair_by_value(
    sides: tuple[Norms, Norms],
    indices: tuple[list[int], list[int]],
    names: tuple[Names, Names],
    rules: Rules,
) -> ParameterPairs:
    """Pair the given parameters of both sides.

    ``names`` holds the canonical names that are known. If all parameters have names, these names
    had no match, and only norms that are almost equal are paired.
    """
    if not indices[0] or not indices[1]:
        return ParameterPairs(())
    lists = (
        build_items(sides[0], indices[0], names[0]),
        build_items(sides[1], indices[1], names[1]),
    )
    if all(item.path for items in lists for item in items):
        match = _match_by_value(lists, 0.0, _STRICT)
        return ParameterPairs(tuple(match.build_pairs()), n_ambiguous=_count_ambiguous(match))
    match = _match_one_format(sides, lists) or _find_best_match(lists, rules)
    pairs = list(match.build_pairs())
    if match.evidence == "value":
        pairs += _pair_fused_parameters(match)
        pairs += _pair_between_neighbors(match, pairs)
    n_target_paired = sum(len(pair.target_indices) for pair in pairs)
    n_reference_paired = sum(len(pair.reference_indices) for pair in pairs)
    n_unpaired = max(len(indices[0]) - n_target_paired, len(indices[1]) - n_reference_paired)
    if n_unpaired > _MAX_UNPAIRED * max(map(len, indices)):
        return ParameterPairs(())
    return ParameterPairs(tuple(pairs), n_ambiguous=_count_ambiguous(match))


def _match_one_format(sides: tuple[Norms, Norms], lists: ItemLists) -> Match | None:
    """Return the match by position of two lists that one framework printed of one model.

    They are in one order: two norms that seem to have changed places are two differences. Return
    None for other lists, or if the model lists its modules in another order since then.
    """
    target, reference = sides
    if not target.list_format or target.list_format != reference.list_format:
        return None
    if len(lists[0]) != len(lists[1]) or not np.array_equal(target.sizes, reference.sizes):
        return None
    distances = compute_elementwise_distances(*lists, 0.0)
    if np.mean(distances <= NEAR) < _ONE_ORDER_SHARE:
        return None
    positions = tuple((position, position) for position in range(len(distances)))
    return Match(lists, positions, "order", 0.0, 1.0)


def _find_best_match(lists: ItemLists, rules: Rules) -> Match:
    """Return the match of the highest score over all arrangements and factors."""
    candidates: list[Match] = []
    for arranged_lists in generate_arrangements(lists, rules):
        candidates += [
            _match_lists(arranged_lists, scale) for scale in _list_scales(arranged_lists)
        ]
    return max(candidates, key=lambda match: match.score)


def _list_scales(lists: ItemLists) -> Iterator[float]:
    """Yield logarithms of possible factors between the sides: 0, and that of the combined norms."""
    yield 0.0
    target_items, reference_items = lists
    if len(target_items) != len(reference_items):
        return
    norm_scale = choose_scale(np.array([item.value for item in (*target_items, *reference_items)]))
    target_square = sum((item.value / norm_scale) ** 2 for item in target_items)
    reference_square = sum((item.value / norm_scale) ** 2 for item in reference_items)
    squares = np.array([target_square, reference_square])
    if not np.all(np.isfinite(squares) & (squares > 0)):
        return
    scale = 0.5 * float(np.log(target_square / reference_square))
    if abs(scale) > NEAR:
        yield scale


def _match_lists(lists: ItemLists, scale: float) -> Match:
    """Match two lists by order if they have the same length and order, else by value."""
    same_length = len(lists[0]) == len(lists[1])
    value_match = Match(lists, (), "value", scale, -1.0)
    if max(map(len, lists)) <= MAX_NORMS:
        value_match = _match_by_value(lists, scale, LOOSE if same_length else _TIGHT)
    if same_length:
        order_match = match_in_order(lists, scale, value_match.score)
        if order_match is not None:
            return order_match
    return value_match


def _match_by_value(lists: ItemLists, scale: float, limit: float) -> Match:
    """Return the match of least total cost, of value first and position second.

    ``limit`` is the distance beyond which a value is no evidence. Norms may stay unpaired.
    """
    from scipy.optimize import linear_sum_assignment

    target_items, reference_items = lists
    n_target, n_reference = len(target_items), len(reference_items)
    distances = compute_distances(target_items, reference_items, scale)
    target_positions = np.arange(n_target)[:, None]
    reference_positions = np.linspace(0, n_target - 1, n_reference)[None, :]
    shifts = np.abs(target_positions - reference_positions)
    pair_costs = compute_cost(distances, limit)
    pair_costs = pair_costs + _POSITION_COST * np.minimum(shifts / LAYER_SPAN, 1)
    # Unpaired norms are assigned to extra positions, of which each side has as many as the other
    # side has norms. Two extra positions together cost nothing.
    costs = np.zeros((n_target + n_reference,) * 2)
    costs[:n_target, :n_reference] = np.where(np.isfinite(distances), pair_costs, _SIZE_COST)
    costs[:n_target, n_reference:] = _UNPAIRED_COST
    costs[n_target:, :n_reference] = _UNPAIRED_COST
    rows, columns = linear_sum_assignment(costs)
    positions = []
    closeness = 0.0
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        if i >= n_target or j >= n_reference:
            continue
        positions.append((i, j))
        if shifts[i, j] <= LAYER_SPAN:
            closeness += float(1 - compute_cost(distances[i, j], LOOSE))
    score = compute_score(closeness / max(n_target, n_reference), scale)
    return Match(lists, tuple(positions), "value", scale, score)


def _count_ambiguous(match: Match) -> int:
    """Count pairs by value that could exchange a norm with another pair at no larger distance."""
    if match.evidence != "value" or len(match.positions) < 2:
        return 0
    target_items = [match.lists[0][i] for i, _ in match.positions]
    reference_items = [match.lists[1][j] for _, j in match.positions]
    distances = compute_distances(target_items, reference_items, match.scale)
    pair_distances = np.diag(distances)
    rounding = [
        max(target.rounding, reference.rounding)
        for target, reference in zip(target_items, reference_items, strict=True)
    ]
    is_fine = np.array(rounding) <= _COARSE
    exchanged_distances = distances + distances.T
    own_distances = pair_distances[:, None] + pair_distances[None, :]
    exchangeable = exchanged_distances <= own_distances + FINE
    exchangeable &= is_fine[:, None] & is_fine[None, :]
    np.fill_diagonal(exchangeable, False)
    return int(exchangeable.any(axis=1).sum())


def _pair_fused_parameters(match: Match) -> list[ParameterPair]:
    """Pair unpaired norms with two to four neighbors on the other side that combine to them."""
    pairs: list[ParameterPair] = []
    for fused_side in (0, 1):
        split_side = 1 - fused_side
        unpaired = _find_unpaired(match, [*match.build_pairs(), *pairs])
        fused_positions = unpaired[fused_side]
        runs = list(_list_runs(unpaired[split_side]))
        if not runs or not fused_positions:
            continue
        fused_items = [match.lists[fused_side][position] for position in fused_positions]
        combined_items = []
        for run in runs:
            parts = [match.lists[split_side][position] for position in run]
            combined_items.append(combine_items(parts))
        distances = compute_distances(fused_items, combined_items, 0.0)
        paired_fused: set[int] = set()
        paired_parts: set[int] = set()
        for flat_index in np.argsort(distances, axis=None, kind="stable").tolist():
            fused_number, run_number = divmod(flat_index, len(runs))
            if distances[fused_number, run_number] > _PARTS_DISTANCE:
                break
            run = runs[run_number]
            if fused_number in paired_fused or paired_parts.intersection(run):
                continue
            paired_fused.add(fused_number)
            paired_parts.update(run)
            fused = (fused_positions[fused_number],)
            if fused_side == 0:
                pairs.append(match.build_pair(fused, run, "parts"))
            else:
                pairs.append(match.build_pair(run, fused, "parts"))
    return pairs


def _list_runs(unpaired: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield each run of two to four consecutive positions that are all unpaired."""
    for start in range(len(unpaired)):
        for length in range(2, _MAX_PARTS + 1):
            run = tuple(unpaired[start : start + length])
            is_consecutive = run[-1] - run[0] == length - 1
            if len(run) == length and is_consecutive:
                yield run


def _pair_between_neighbors(match: Match, pairs: Sequence[ParameterPair]) -> list[ParameterPair]:
    """Pair unpaired norms by order if both sides have as many between two neighboring pairs."""
    unpaired = _find_unpaired(match, pairs)
    target_unpaired, reference_unpaired = set(unpaired[0]), set(unpaired[1])
    bounds = [(-1, -1), *sorted(match.positions), (len(match.lists[0]), len(match.lists[1]))]
    new_pairs = []
    for (before_target, before_reference), (after_target, after_reference) in pairwise(bounds):
        target_gap = range(before_target + 1, after_target)
        reference_gap = range(before_reference + 1, after_reference)
        if len(target_gap) != len(reference_gap) or len(target_gap) == 0:
            continue
        if not target_unpaired.issuperset(target_gap):
            continue
        if not reference_unpaired.issuperset(reference_gap):
            continue
        target_items = [match.lists[0][position] for position in target_gap]
        reference_items = [match.lists[1][position] for position in reference_gap]
        distances = compute_elementwise_distances(target_items, reference_items, match.scale)
        if not np.isfinite(distances).all():
            continue
        for i, j in zip(target_gap, reference_gap, strict=True):
            new_pairs.append(match.build_pair((i,), (j,), "order"))
    return new_pairs


def _find_unpaired(match: Match, pairs: Sequence[ParameterPair]) -> tuple[list[int], list[int]]:
    """Return the positions of both lists that are in no pair."""
    paired_target, paired_reference = collect_paired_indices(pairs)
    target_items, reference_items = match.lists
    return (
        _find_unpaired_positions(target_items, paired_target),
        _find_unpaired_positions(reference_items, paired_reference),
    )


def _find_unpaired_positions(items: Sequence[Item], paired_indices: set[int]) -> list[int]:
    positions = []
    for position, item in enumerate(items):
        if not paired_indices.intersection(item.indices):
            positions.append(position)
    return positions
