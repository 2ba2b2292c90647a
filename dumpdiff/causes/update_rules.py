"""Compare the rules by which both sides update a weight, as far as a first step shows them.

Moments that start at zero are multiples of the gradient and of its square after one step. So it
shows whether a weight moves along its gradient or along the gradient over its size, and which of
the two is decayed: what else tells SGD from its momentum, or Adam from NAdam, comes later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import list_kept_values
from ..model.finding import Cause
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import OPTIMIZER
from ..optimizers.adam import Adam
from ..optimizers.fit import Fit, UpdateData
from ..optimizers.groups import AMBIGUOUS, EXPLAINED, group_parameters
from ..optimizers.history import build_history
from ..optimizers.rule import DECOUPLED, L2, NO_DECAY
from ..optimizers.search import KnownSettings
from ..optimizers.sgd import SGD
from .comparison_index import ComparisonIndex, ValuePair, find_whole_tensor, name_producer

_RULES = (SGD(), SGD(decay=L2), Adam(), Adam(decay=DECOUPLED), Adam(decay=L2))


def find_other_rule(index: ComparisonIndex, value_pair: ValuePair) -> Cause | None:
    """Return the cause if both sides update the weight of a value by other rules.

    None if the values are neither what an update keeps nor computed from its weight, if a whole
    tensor is missing, if none of the rules explains a side's step, or if one rule with other
    numbers can explain both.
    """
    weights = [_find_weight(index, side, value) for side, value in enumerate(value_pair.classes)]
    if min(weights) < 0:
        return None
    gradients = _find_gradients(index, weights)
    fits_of_sides = [_fit_rules(index, side, weights[side], gradients[side]) for side in (0, 1)]
    if not all(fits_of_sides):
        return None
    target_fits, reference_fits = fits_of_sides
    if any(_may_be_one_rule(t, r) for t in target_fits for r in reference_fits):
        return None
    target_name, reference_name = target_fits[0].rule.name, reference_fits[0].rule.name
    producer = index.flows[0].producers[value_pair.classes[0]]
    subject = name_producer(index.flows[0], int(producer))
    residual = max(target_fits[0].residual, reference_fits[0].residual)
    text = (
        f"{subject}: the step of the target is that of {target_name}; "
        f"the step of the reference is that of {reference_name}"
    )
    return Cause("update-rule", text, residual)


def _find_weight(index: ComparisonIndex, side: int, value: int) -> int:
    """Return the weight whose update keeps a value or computes it from the weight; -1 if none."""
    updates = index.comparison.alignment.sides[side].updates
    for weight, update in updates.items():
        if value in list_kept_values(update):
            return weight
    flow = index.flows[side]
    producer = int(flow.producers[value])
    weights = [read for read in flow.reads[producer] if read in updates] if producer >= 0 else []
    return weights[0] if len(weights) == 1 else -1


def _find_gradients(index: ComparisonIndex, weights: Sequence[int]) -> Sequence[int]:
    """Return the gradients of a weight on both sides, -1 for an unknown one.

    A gradient that an update adds its decay to is known as the partner of the other side's.
    """
    gradients = [
        side.gradients.by_value.get(weight, -1)
        for side, weight in zip(index.comparison.alignment.sides, weights, strict=True)
    ]
    for side in (0, 1):
        if gradients[side] < 0:
            gradients[side] = index.partners[1 - side].get(gradients[1 - side], -1)
    return [_follow_clipping(index, side, gradient) for side, gradient in enumerate(gradients)]


def _follow_clipping(index: ComparisonIndex, side: int, gradient: int) -> int:
    """Return the gradient that the update reads: times a number, where all gradients are clipped.

    A decay that is added to it counts in units of this one.
    """
    flow = index.flows[side]
    products = [
        written
        for op in (flow.users[gradient] if gradient >= 0 else ())
        if flow.phases[op] == OPTIMIZER and index.kinds[side][op] in ("mul", "div")
        for written in flow.writes[op]
        if flow.sizes[written] == flow.sizes[gradient]
        and all(flow.sizes[read] == 1 for read in flow.reads[op] if read != gradient)
    ]
    return products[0] if len(products) == 1 else gradient


def _fit_rules(index: ComparisonIndex, side: int, weight: int, gradient: int) -> tuple[Fit, ...]:
    """Return the rules that explain the step of a weight, the best one first."""
    prepared = index.comparison.alignment.sides[side]
    arrays = []
    for value in (weight, prepared.updates[weight].new_weight, gradient):
        tensor = find_whole_tensor(prepared.flow, value) if value >= 0 else -1
        array = load_readable_tensor(prepared.flow.trace, tensor) if tensor >= 0 else None
        if array is None:
            return ()
        arrays.append(array)
    try:
        history = build_history("weight", arrays[:2], arrays[2:])
    except ValueError:  # a gradient of another size: one of several in a fused tensor
        return ()
    data = UpdateData((history,), np.asarray(history.norms))
    (group,) = group_parameters(data, KnownSettings(), _RULES)
    if group.fit is None or group.state not in (EXPLAINED, AMBIGUOUS):
        return ()
    return (group.fit, *group.equivalent_fits)


def _may_be_one_rule(fit: Fit, other: Fit) -> bool:
    """Return whether two steps may be of one rule, whose numbers differ."""
    decays = {fit.rule.decay, other.rule.decay} - {NO_DECAY}
    return fit.rule.family == other.rule.family and len(decays) <= 1
