"""Weights that changed places: ops that compute one thing with each other's parameters."""

from __future__ import annotations

from .comparison_index import ComparisonIndex, find_weighted_call


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
    call = find_weighted_call(index.flows[side], own_op) if own_op >= 0 else None
    if call is None:
        return 0
    kind = index.kinds[side][own_op]
    weights_of_inputs = index.weighted_calls[side].get(kind, {})
    partners = index.partners[1 - side]
    inputs_of_weights = {
        partners.get(weight, -1): partners.get(value, -1)
        for value, weight in index.weighted_calls[1 - side].get(kind, {}).items()
    }
    first_input, weight = call
    n_calls = 0
    while weight >= 0 and weight in inputs_of_weights and n_calls < len(weights_of_inputs):
        n_calls += 1
        value = inputs_of_weights[weight]
        if value == first_input:
            return n_calls if n_calls > 1 else 0
        weight = weights_of_inputs.get(value, -1)
    return 0
