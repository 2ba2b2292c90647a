"""Weights that changed places: ops that compute one thing with each other's parameters."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.trace import FORWARD
from .comparison_index import ComparisonIndex


def find_exchanged_weights(
    index: ComparisonIndex, side: int, name: str, own_name: str
) -> tuple[str, str] | None:
    """Return the parameters of two ops that compute one thing with each of them, by their names.

    The second one is of ``side``, and so are the names; the other one is of either side. None if
    they compute other things.
    """
    own_op = index.ops_by_name[side].get(own_name, -1)
    other_side = side if name != own_name and name in index.ops_by_name[side] else 1 - side
    other_op = index.ops_by_name[other_side].get(name, -1)
    if min(own_op, other_op) < 0 or index.kinds[side][own_op] != index.kinds[other_side][other_op]:
        return None
    others = list(index.flows[other_side].operands[other_op])
    if other_side != side:
        others = [index.partners[other_side].get(value, -1) for value in others]
    operands = [others, list(index.flows[side].operands[own_op])]
    names = ["", *index.flows[side].list_column("parameter")]  # value -1 is the first one
    weights = [[str(names[value + 1]) for value in own if names[value + 1]] for own in operands]
    inputs = [sorted(value for value in own if not names[value + 1]) for own in operands]
    if [len(own) for own in weights] != [1, 1] or inputs[0] != inputs[1]:
        return None
    return weights[0][0], weights[1][0]


def count_exchanged_calls(index: ComparisonIndex, side: int, name: str) -> int:
    """Return among how many calls of one kind the weights changed places, 0 if they did not.

    ``name`` is an op of ``side``. The other side multiplies another value by its weight, that value
    has a weight of its own on this side, and so on: until the op's own input is reached.
    """
    own_op = index.ops_by_name[side].get(name, -1)
    if own_op < 0:
        return 0
    kind = index.kinds[side][own_op]
    weights_of_inputs = _list_weighted_calls(index, side, side, kind)
    inputs_of_weights = {
        weight: value for value, weight in _list_weighted_calls(index, 1 - side, side, kind).items()
    }
    calls = _list_weighted_calls(index, side, side, kind, [own_op])
    if not calls:
        return 0
    ((first_input, weight),) = calls.items()
    n_calls = 0
    while weight in inputs_of_weights and n_calls < len(weights_of_inputs):
        n_calls += 1
        value = inputs_of_weights[weight]
        if value == first_input:
            return n_calls if n_calls > 1 else 0
        weight = weights_of_inputs.get(value, -1)
    return 0


def _list_weighted_calls(
    index: ComparisonIndex, side: int, naming_side: int, kind: str, ops: Sequence[int] = ()
) -> dict[int, int]:
    """Return input -> weight of the forward calls of a kind that read one of each.

    Both are classes of ``naming_side``. All ops of the side are looked at if none is given.
    """
    flow = index.flows[side]
    names = flow.list_column("parameter")
    calls: dict[int, int] = {}
    for op in ops or range(len(index.kinds[side])):
        if index.kinds[side][op] != kind or flow.phases[op] != FORWARD or flow.is_module[op]:
            continue
        operands = flow.operands[op]
        weights = [v for v in operands if names[v] and len(flow.shapes[v] or ()) > 1]
        inputs = [value for value in operands if not names[value]]
        if len(weights) == len(inputs) == 1:
            named_values = [*inputs, *weights]
            if side != naming_side:
                named_values = [index.partners[side].get(value, -1) for value in named_values]
            calls.setdefault(named_values[0], named_values[1])
    return calls
