"""Gradients of parameters that one side recorded by name, and that have no partner."""

from __future__ import annotations

import numpy as np

from ..model.arrays import Floats
from ..model.formatting import format_names
from ..model.trace import BACKWARD
from ..model.verdict import UNPAIRED
from .joint_graph import GraphSide, JointGraph
from .states import States

#: Parameters that a sentence names.
_MAX_NAMES = 3
#: What is equal of two gradients that are one value, and how exactly statistics show it.
_NUMBERS, _SAME_NUMBER = ["size", "max", "min", "norm"], 1e-5
#: Cancellation from which on a float32 sum is nothing but rounding: a tenth of 1 / 2^-24, as the
#: errors of hundreds of terms add up.
_ONLY_ROUNDING = 0.1 * 2**24


def find_gradient_gaps(graph: JointGraph, states: States) -> list[str]:
    """Return a sentence for each side with a gradient that was not compared.

    It is the end of a chain, so nothing that is computed from it can agree in its place. Only
    gradients that the record names count, of parameters with one partner: of a fused parameter, and
    of its parts, another tensor is recorded. Two biases that are added to one sum have one
    gradient, and a sum over other axes may have its numbers; it is enough that one of them was
    compared. The other side must be one that records every op of the backward pass: recorders of
    calls leave gradients out. A backward pass of one side alone is not needed. In a coarse dtype,
    different values look equal, and few are paired by their numbers: there only the share of
    compared ops is judged. A gradient that is nothing but rounding, as that of a bias before a
    norm, says nothing.
    """
    if not graph.is_precise or not all(BACKWARD in side.flow.phases for side in graph.sides):
        return []
    partners = graph.comparison.alignment.partners
    paired_values = set(partners), set(partners.values())
    gaps = []
    for position, name in enumerate(("target", "reference")):
        side, other_side = graph.sides[position], graph.sides[1 - position]
        if other_side.flow.records_calls:
            continue
        paired = paired_values[position]
        parameters = side.flow.parameter_values
        names = [
            parameter
            for parameter in _list_uncompared_names(side, states)
            if parameters.get(parameter, -1) in paired
        ]
        if names:
            gaps.append(
                f"the gradients of {len(names)} of {len(parameters)} parameters of the {name} have "
                f"no partner and were not compared: {format_names(names, _MAX_NAMES)}"
            )
    return gaps


def _list_uncompared_names(side: GraphSide, states: States) -> list[str]:
    """Return the parameters whose gradients the record names, and none that is equal has a pair."""
    flow = side.flow
    is_named = (flow.tensors["gradient_of"] != "").to_numpy() & (flow.tensor_class >= 0)
    names: list[str] = flow.tensors["gradient_of"][is_named].tolist()
    values = flow.tensor_class[is_named]
    nodes = side.nodes[values]
    is_compared = states.state[nodes] != UNPAIRED
    is_compared |= states.cancellations[nodes] >= _ONLY_ROUNDING
    rows = np.flatnonzero(~is_compared).tolist()
    if not rows:
        return []
    is_judged = (side.nodes >= 0) & (states.state[side.nodes] != UNPAIRED)
    is_judged[values[is_compared]] = True
    numbers = flow.classes[_NUMBERS].to_numpy(dtype=float)
    judged_numbers = numbers[is_judged]
    judged_numbers = judged_numbers[np.argsort(judged_numbers[:, -1])]
    return [names[row] for row in rows if not _holds_row(judged_numbers, numbers[values[row]])]


def _holds_row(rows: Floats, row: Floats) -> bool:
    """Return whether some rows, in the order of their last numbers, have one with these numbers."""
    slack = _SAME_NUMBER * abs(row[-1])
    first, end = np.searchsorted(rows[:, -1], (row[-1] - slack, row[-1] + slack))
    is_equal = np.isclose(rows[first:end], row, rtol=_SAME_NUMBER, atol=0).all(axis=1)
    return bool(is_equal.any())
