"""Evidence of the training step: gradients of paired values, new weights and optimizer state.

New weights and optimizer state differ where a step does, and an update rule can be written in many
ways. But a new weight is near the old one. And in a first step a moment is a power of the gradient
times a number, so the shape of its distribution identifies it.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from ..graph import Flow, Gradients
from ..model.trace import OPTIMIZER
from . import confidence
from .matches import Matching
from .values import Fingerprints, compute_distances

#: Largest distance of a new weight from the old one. A value farther away is not a new weight.
_MAX_STEP = 0.05
#: Values of one parameter's update that are followed; the longest rule has about twenty.
_MAX_UPDATE_VALUES = 64
#: Tolerances up to which the shapes of two distributions agree.
_SHAPE_TOLERANCES = 16


def pair_by_gradient(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair the gradients of paired values, and the gradients that flow between paired values.

    Returns whether any pair was added.
    """
    progress = False
    for value, gradient in target.by_value.items():
        partner = reference.by_value.get(int(matching.classes_t[value]))
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", confidence.GRADIENT_OF_VALUE)
    for (output, value, has_detour), gradient in target.by_edge.items():
        edge = (int(matching.classes_t[output]), int(matching.classes_t[value]), has_detour)
        partner = reference.by_edge.get(edge)
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", confidence.GRADIENT_OF_EDGE)
    return progress


def pair_by_update(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair the new weights and optimizer state of paired parameters.

    Returns whether any pair was added.
    """
    if OPTIMIZER not in matching.target.phases or OPTIMIZER not in matching.reference.phases:
        return False
    shapes_t, shapes_r = matching.prints_t.normalize(), matching.prints_r.normalize()
    progress = False
    for weight_t, gradient_t in target.by_value.items():
        weight_r = int(matching.classes_t[weight_t])
        gradient_r = reference.by_value.get(weight_r)
        if matching.producer_t[weight_t] >= 0 or gradient_r is None:
            continue
        if matching.producer_r[weight_r] >= 0:
            continue
        kept_t = _find_kept_values(matching.target, weight_t, gradient_t)
        kept_r = _find_kept_values(matching.reference, weight_r, gradient_r)
        new_weights_t = _select_near_values(matching.prints_t, weight_t, kept_t)
        new_weights_r = _select_near_values(matching.prints_r, weight_r, kept_r)
        if new_weights_t and new_weights_r:
            progress |= matching.pair(
                new_weights_t[-1], new_weights_r[-1], "update", confidence.NEW_WEIGHT
            )
        state_t = [value for value in kept_t if value not in new_weights_t]
        state_r = [value for value in kept_r if value not in new_weights_r]
        progress |= _pair_moments(matching, shapes_t, shapes_r, state_t, state_r)
    return progress


def _pair_moments(
    matching: Matching,
    shapes_t: Fingerprints,
    shapes_r: Fingerprints,
    values_t: list[int],
    values_r: list[int],
) -> bool:
    """Pair optimizer state of equal shape of distribution, last first; return whether any was."""
    tolerance = _SHAPE_TOLERANCES * matching.tolerance
    open_r = [value for value in values_r if matching.classes_r[value] < 0]
    progress = False
    for t in reversed(values_t):
        if matching.classes_t[t] >= 0:
            continue
        similar_r = [r for r in open_r if _compute_distance(shapes_t, t, shapes_r, r) <= tolerance]
        if not similar_r:
            continue
        partner = similar_r[-1]
        if matching.pair(t, partner, "update", confidence.MOMENT):
            open_r.remove(partner)
            progress = True
    return progress


def _find_kept_values(flow: Flow, weight: int, gradient: int) -> list[int]:
    """Return the values that the optimizer computes from a weight or its gradient and keeps.

    They have the weight's size and are in order of execution. A value is kept if it is written in
    place or assigned, or if no further step of the update reads it.
    """
    kinds = flow.trace.ops["kind"]
    is_kept: dict[int, bool] = {}
    todo = [weight, gradient]
    for value in todo:
        for op in flow.consumers[value]:
            if flow.phases[op] != OPTIMIZER or len(is_kept) > _MAX_UPDATE_VALUES:
                continue
            for output in flow.writes[op]:
                is_same_size = flow.sizes[output] == flow.sizes[weight]
                if output not in is_kept and is_same_size and flow.producers[output] == op:
                    is_kept[output] = kinds.iat[op].endswith("_")
                    todo.append(output)
    for value in is_kept:
        is_kept[value] |= _is_result_of_update(flow, value, is_kept.keys())
    kept_values = [value for value in is_kept if is_kept[value]]
    return sorted(kept_values, key=lambda value: int(flow.producers[value]))


def _is_result_of_update(flow: Flow, value: int, update_values: Set[int]) -> bool:
    """Return whether a value is assigned, or no op computes another value of the update from it."""
    kinds = flow.trace.ops["kind"]
    outputs: set[int] = set()
    for op in flow.consumers[value]:
        if flow.phases[op] != OPTIMIZER:
            continue
        if kinds.iat[op].startswith("Assign"):
            return True
        outputs.update(flow.writes[op])
    return outputs.isdisjoint(update_values)


def _select_near_values(prints: Fingerprints, weight: int, values: list[int]) -> list[int]:
    return [
        value for value in values if _compute_distance(prints, value, prints, weight) <= _MAX_STEP
    ]


def _compute_distance(target: Fingerprints, t: int, reference: Fingerprints, r: int) -> float:
    return float(compute_distances(target, np.array([t]), reference, np.array([r]))[0])
