"""Evidence of the training step: gradients of paired values, new weights and optimizer states.

New weights and states differ where a step does, and an update rule can be written in many ways. But
the partner of a new weight is known: that of the old weight. And in a first step a moment is a
power of the gradient times a number, so the shape of its distribution identifies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise

import numpy as np

from ..graph import Flow, Gradients, Update, find_gradients
from ..model.arrays import Ints
from ..model.recorded_shapes import drop_unit_axes
from ..model.trace import BACKWARD, FORWARD
from . import confidence
from .matches import Matching, NewWeight
from .sides import PreparedSide
from .values import Fingerprints, compute_distances

#: Tolerances up to which the shapes of two distributions agree.
_SHAPE_TOLERANCES = 16
#: Axes of a gradient that may have been merged, at most.
_MAX_MERGED_AXES = 5


def infer_more_gradients(
    matching: Matching, target: PreparedSide, reference: PreparedSide
) -> tuple[PreparedSide, PreparedSide]:
    """Return the sides with the gradients that follow from those that the other side knows.

    What one side does not record is inferred from the dataflow of its backward pass, backwards from
    the weights of products. Behind the last of them, in a loss, nothing is known but what has a
    partner: the gradient of its partner.
    """
    partners_t, partners_r = matching.classes_t, matching.classes_r
    return (
        _infer_more_gradients(target, reference.gradients, partners_r),
        _infer_more_gradients(reference, target.gradients, partners_t),
    )


def _infer_more_gradients(side: PreparedSide, others: Gradients, partners: Ints) -> PreparedSide:
    """Return a side with what follows from the other side's gradients.

    ``partners``: class on this side of each class of the other side, -1 if it has none.
    """
    if side.flow.records_calls:
        return side
    own = side.gradients.by_value
    known_gradients = {
        int(partners[value]): int(partners[gradient])
        for value, gradient in others.by_value.items()
        if min(partners[value], partners[gradient]) >= 0
        and int(partners[value]) not in own
        and value not in others.repeats
    }
    if not known_gradients:
        return side
    inferred = find_gradients(side.flow, side.kinds, known_gradients)
    new_gradients = {
        value: gradient
        for value, gradient in inferred.by_value.items()
        if not _may_be_term(side, value, gradient)
    }
    gradients = replace(
        inferred,
        by_value={**new_gradients, **own},
        by_edge={**inferred.by_edge, **side.gradients.by_edge},
    )
    return replace(side, gradients=gradients)


def _may_be_term(side: PreparedSide, value: int, gradient: int) -> bool:
    """Return whether a gradient may be one of several terms that flow back to a value.

    Several ops read the value, or the gradient is added to another one.
    """
    flow, kinds = side.flow, side.kinds
    n_readers = sum(flow.phases[op] == FORWARD for op in flow.users[value])
    is_added = any(
        kinds[op] == "add" and flow.phases[op] == BACKWARD for op in flow.users[gradient]
    )
    return n_readers != 1 or is_added


def pair_by_gradient(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair the gradients of paired values, and the gradients that flow between paired values.

    Not if one side computes such a value more often than the other: what flows back to each of the
    equal results is a share of the gradient. Returns whether any pair was added.
    """
    columns_t = _GradientColumns.from_gradients(target, len(matching.classes_t))
    columns_r = _GradientColumns.from_gradients(reference, len(matching.classes_r))
    value_pairs = _list_open_pairs(matching, *_join_values(matching, columns_t, columns_r))
    edge_pairs = _list_open_pairs(matching, *_join_edges(matching, columns_t, columns_r))
    progress = False
    for t, r in matching.sort_pairs(value_pairs):
        progress |= matching.pair(t, r, "gradient", confidence.GRADIENT_OF_VALUE)
    for t, r in matching.sort_pairs(edge_pairs):
        progress |= matching.pair(t, r, "gradient", confidence.GRADIENT_OF_EDGE)
    return progress


@dataclass(frozen=True)
class _GradientColumns:
    """The gradients of one side as columns. ``repeats`` ends with the 0 of class -1."""

    values: Ints  #: (gradients by value,)
    gradients: Ints
    outputs: Ints  #: (gradients by edge,)
    inputs: Ints
    has_detour: Ints
    edge_gradients: Ints
    repeats: Ints  #: (classes + 1,) how often a value was computed, 0 for once

    @staticmethod
    def from_gradients(gradients: Gradients, n_classes: int) -> _GradientColumns:
        """Return the gradients of a side with so many classes."""
        edges = np.fromiter(chain.from_iterable(gradients.by_edge), np.int64).reshape(-1, 3)
        outputs, inputs, has_detour = edges.T
        repeats = np.zeros(n_classes + 1, dtype=np.int64)
        repeats[list(gradients.repeats)] = list(gradients.repeats.values())
        return _GradientColumns(
            np.array(list(gradients.by_value), dtype=np.int64),
            np.array(list(gradients.by_value.values()), dtype=np.int64),
            outputs,
            inputs,
            has_detour,
            np.array(list(gradients.by_edge.values()), dtype=np.int64),
            repeats,
        )


def _join_values(
    matching: Matching, target: _GradientColumns, reference: _GradientColumns
) -> tuple[Ints, Ints]:
    """Return the gradients of paired values, of the target and of the reference."""
    gradient_of = np.full(len(matching.classes_r) + 1, -1)
    gradient_of[reference.values] = reference.gradients
    other_values = matching.classes_t[target.values]
    partners = gradient_of[other_values]
    is_joined = target.repeats[target.values] == reference.repeats[other_values]
    is_joined &= partners >= 0
    return target.gradients[is_joined], partners[is_joined]


def _join_edges(
    matching: Matching, target: _GradientColumns, reference: _GradientColumns
) -> tuple[Ints, Ints]:
    """Return the gradients of edges between paired values, of the target and of the reference."""
    n_values = len(matching.classes_r) + 1

    def number_edges(outputs: Ints, inputs: Ints, has_detour: Ints) -> Ints:
        return ((outputs + 1) * n_values + inputs + 1) * 2 + has_detour

    other_outputs = matching.classes_t[target.outputs]
    edges = number_edges(other_outputs, matching.classes_t[target.inputs], target.has_detour)
    other_edges = number_edges(reference.outputs, reference.inputs, reference.has_detour)
    by_number = np.argsort(other_edges)
    is_known = np.isin(edges, other_edges)
    is_known &= target.repeats[target.outputs] == reference.repeats[other_outputs]
    places = np.searchsorted(other_edges, edges[is_known], sorter=by_number)
    return target.edge_gradients[is_known], reference.edge_gradients[by_number[places]]


def _list_open_pairs(matching: Matching, targets: Ints, references: Ints) -> list[tuple[int, int]]:
    """Return the pairs of classes that both have no partner."""
    is_open = (matching.classes_t[targets] < 0) & (matching.classes_r[references] < 0)
    return list(zip(targets[is_open].tolist(), references[is_open].tolist(), strict=True))


def pair_remaining_gradients(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair the only gradient of a parameter without a partner with the only result that can be it.

    Graph mode does not name the gradients of parameters. If one is wrong, its values do not show
    which it is. Of the other side it must be the gradient of a paired parameter, and no other
    unpaired gradient of a parameter may have its shape. Of this side it must be the only unpaired
    result of the backward pass of that shape that no op of that pass computes with, and not be
    known as the gradient of another parameter. A result may have merged axes, as the kernel of a
    convolution that is written as a product of matrices. Returns whether any pair was added.
    """
    progress = False
    for t, r in _find_remaining_gradients(
        (matching.target, matching.classes_t, target),
        (matching.reference, matching.classes_r, reference),
    ):
        progress |= matching.pair(t, r, "gradient", confidence.REMAINING_GRADIENT)
    for r, t in _find_remaining_gradients(
        (matching.reference, matching.classes_r, reference),
        (matching.target, matching.classes_t, target),
    ):
        progress |= matching.pair(t, r, "gradient", confidence.REMAINING_GRADIENT)
    return progress


def _find_remaining_gradients(
    side: tuple[Flow, Ints, Gradients], naming_side: tuple[Flow, Ints, Gradients]
) -> list[tuple[int, int]]:
    """Return pairs (result of a side, gradient of the side that names it); see above.

    A side is its flow, the partner of each of its classes (-1 if it has none) and its gradients.
    """
    flow, partners, gradients = side
    naming_flow, naming_partners, naming_gradients = naming_side
    results_of_shape: dict[tuple[int, ...], list[int]] = {}
    own_names = flow.list_column("parameter")
    known_gradients = {
        gradient for value, gradient in gradients.by_value.items() if own_names[value]
    }
    for value in np.flatnonzero((partners < 0) & (flow.producers >= 0)).tolist():
        if value in known_gradients:
            continue
        if flow.phases[flow.producers[value]] == BACKWARD and not _is_read_backward(flow, value):
            results_of_shape.setdefault(_get_lengths(flow, value), []).append(value)
    parameters_of_shape: dict[tuple[int, ...], list[int]] = {}
    parameters_of_merged_shape: dict[tuple[int, ...], list[int]] = {}
    names = naming_flow.list_column("parameter")
    for parameter, gradient in naming_gradients.by_value.items():
        if names[parameter] and naming_partners[gradient] < 0:
            lengths = _get_lengths(naming_flow, gradient)
            parameters_of_shape.setdefault(lengths, []).append(parameter)
            for merged_lengths in _merge_axes(naming_flow.shapes[gradient] or ()):
                parameters_of_merged_shape.setdefault(merged_lengths, []).append(parameter)
    pairs = []
    for lengths, results in results_of_shape.items():
        parameters = (
            parameters_of_shape.get(lengths) or parameters_of_merged_shape.get(lengths) or []
        )
        if not len(parameters) == len(results) == 1:
            continue
        partner = int(naming_partners[parameters[0]])
        if partner >= 0 and partner not in gradients.by_value:
            pairs.append((results[0], naming_gradients.by_value[parameters[0]]))
    return pairs


def _is_read_backward(flow: Flow, value: int) -> bool:
    """Return whether an op of the backward pass computes with a value; a view of it does not."""
    return any(
        flow.phases[op] == BACKWARD and (flow.writes[op] or len(flow.reads[op]) > 1)
        for op in flow.users[value]
    )


def _get_lengths(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the lengths of the axes of a value in ascending order: it may be transposed."""
    return tuple(sorted(drop_unit_axes(flow.shapes[value] or ())))


def _merge_axes(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return the lengths, in ascending order, to which neighboring axes can be merged.

    At least two are left.
    """
    shape = drop_unit_axes(shape)
    if len(shape) > _MAX_MERGED_AXES:
        return set()
    merged: set[tuple[int, ...]] = set()
    for n_cuts in range(1, len(shape) - 1):
        for cuts in combinations(range(1, len(shape)), n_cuts):
            edges = pairwise((0, *cuts, len(shape)))
            merged.add(tuple(sorted(math.prod(shape[start:end]) for start, end in edges)))
    return merged


def pair_step_counts(matching: Matching) -> bool:
    """Pair the counts of steps, if both optimizers have counted equally; return whether they did.

    A count that differs is left without a partner: not every rule uses it.
    """
    progress = False
    for t in matching.target.counters:
        equal_r = [
            r
            for r in matching.reference.counters
            if matching.prints_r.high[r] == matching.prints_t.high[t]
        ]
        if len(equal_r) == 1:
            progress |= matching.pair(t, equal_r[0], "update", confidence.MOMENT)
    return progress


def collect_new_weights(updates: Mapping[int, Update]) -> frozenset[int]:
    """Return the classes that are the new value of a weight."""
    return frozenset(update.new_weight for update in updates.values()) - {-1}


def pair_by_update(
    matching: Matching, target: Mapping[int, Update], reference: Mapping[int, Update]
) -> bool:
    """Pair the new weights and the optimizer states of paired weights.

    Returns whether any pair was added.
    """
    shapes_t, shapes_r = matching.prints_t.normalize(), matching.prints_r.normalize()
    progress = False
    for weight_t, update_t in target.items():
        weight_r = int(matching.classes_t[weight_t])
        update_r = reference.get(weight_r)
        if update_r is None:
            continue
        if update_t.new_weight >= 0 and update_r.new_weight >= 0:
            new_weight = NewWeight(
                update_t.new_weight,
                update_r.new_weight,
                weight_t,
                weight_r,
                (
                    find_second_moment(matching.prints_t, update_t),
                    find_second_moment(matching.prints_r, update_r),
                ),
            )
            progress |= matching.pair_new_weights(new_weight)
        progress |= _pair_states(matching, shapes_t, shapes_r, update_t.states, update_r.states)
    return progress


def find_second_moment(prints: Fingerprints, update: Update) -> int:
    """Return the second moment among the states of one side, -1 if there is none.

    A first moment of few elements may have no negative one, either. It is larger than the second
    one while the gradients are below 100.
    """
    states = [state for state in update.states if _is_second_moment(prints, state)]
    return min(states, key=lambda state: float(prints.high[state]), default=-1)


def _is_second_moment(prints: Fingerprints, state: int) -> bool:
    """Return whether a state has no negative element, and others than 0."""
    return bool(prints.low[state] >= 0 and prints.high[state] > 0)


def _pair_states(
    matching: Matching,
    shapes_t: Fingerprints,
    shapes_r: Fingerprints,
    states_t: Sequence[int],
    states_r: Sequence[int],
) -> bool:
    """Pair the states of one weight; return whether any were.

    First those of equal shape of distribution, then those that are the only one of their sign: a
    second moment has no negative element, a first moment has.
    """
    tolerance = _SHAPE_TOLERANCES * matching.tolerance
    for t in states_t:
        if matching.classes_t[t] in states_r:
            matching.pair_states(t, int(matching.classes_t[t]))
    open_t = [value for value in states_t if matching.classes_t[value] < 0]
    open_r = [value for value in states_r if matching.classes_r[value] < 0]
    progress = False
    for t in list(open_t):
        similar_r = [r for r in open_r if _compute_distance(shapes_t, t, shapes_r, r) <= tolerance]
        if len(similar_r) == 1 and matching.pair_states(t, similar_r[0]):
            open_t.remove(t)
            open_r.remove(similar_r[0])
            progress = True
    for is_second in (False, True):
        of_sign_t = [t for t in open_t if _is_second_moment(matching.prints_t, t) == is_second]
        of_sign_r = [r for r in open_r if _is_second_moment(matching.prints_r, r) == is_second]
        if len(of_sign_t) == len(of_sign_r) == 1:
            progress |= matching.pair_states(of_sign_t[0], of_sign_r[0])
    return progress


def _compute_distance(target: Fingerprints, t: int, reference: Fingerprints, r: int) -> float:
    return float(compute_distances(target, np.array([t]), reference, np.array([r]))[0])
