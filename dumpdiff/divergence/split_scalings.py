"""Values that one side scales here and the other side elsewhere: queries, or queries and keys."""

from __future__ import annotations

import numpy as np

from ..model.trace import FORWARD
from .joint_graph import GraphSide, JointGraph

#: Kinds of operators that multiply by a number, and of those that multiply the scaled values.
_SCALING_KINDS = frozenset({"mul", "div"})
_PRODUCT_KINDS = frozenset({"matmul", "mul"})
#: Relative difference of two products of the numbers, of which statistics have six digits.
_SAME_FACTOR = 1e-4


def find_split_scalings(graph: JointGraph) -> frozenset[int]:
    """Return the forward pairs of one value times other numbers, which their products undo.

    What is scaled by d^-1/2 is multiplied by k on one side; what is scaled by d^-1/4 by d^-1/4 k
    on the other side. Such a pair differs, and is no difference of the two computations. That
    needs no agreement below: the numbers follow from the norms of each side.
    """
    pairs = graph.comparison.pairs
    differs = pairs["error"].to_numpy(dtype=float) > pairs["tolerance"].to_numpy(dtype=float)
    is_forward = graph.phase[: len(pairs)] == FORWARD
    return frozenset(
        node
        for node in np.flatnonzero(differs & is_forward).tolist()
        if multiplies_one_value(graph, node) and _is_undone(graph, node)
    )


def multiplies_one_value(graph: JointGraph, node: int) -> bool:
    """Return whether both sides compute a pair as one value times a number, recorded or not."""
    bases = [_find_base(side, node)[0] for side in graph.sides]
    return bases[0] == bases[1] >= 0


def _find_base(side: GraphSide, node: int) -> tuple[int, float]:
    """Return (node, number) if one side computes a node as another one times a number.

    Else (-1, 1).
    """
    producer = side.find_producer(node)
    if producer < 0 or side.kinds[producer] not in _SCALING_KINDS:
        return -1, 1.0
    sizes, norms = side.flow.sizes, side.flow.list_column("norm")
    operands = [value for value in side.flow.operands[producer] if sizes[value] > 1]
    value = int(side.classes[node])
    if len(operands) != 1 or sizes[operands[0]] != sizes[value] or not norms[operands[0]] > 0:
        return -1, 1.0
    return int(side.nodes[operands[0]]), float(norms[value] / norms[operands[0]])


def _is_undone(graph: JointGraph, node: int) -> bool:
    """Return whether all products that are computed from a pair have the same numbers in all."""
    n_pairs = len(graph.comparison.pairs)
    products = [
        child for child in graph.children[node] if child < n_pairs and graph.phase[child] == FORWARD
    ]
    return bool(products) and all(_has_same_product(graph, node, product) for product in products)


def _has_same_product(graph: JointGraph, node: int, product: int) -> bool:
    """Return whether both sides multiply what the pair is a multiple of by multiples of one value.

    The numbers together must be the same on both sides. A value that one side scales may have been
    paired with the scaled one, where both differ for another reason; then the value before the
    scaling has no partner.
    """
    factors, bases, others = [], [], []
    for side in graph.sides:
        producer = side.find_producer(product)
        if producer < 0 or side.kinds[producer] not in _PRODUCT_KINDS:
            return False
        operands = [int(side.nodes[value]) for value in side.flow.operands[producer]]
        rest = [operand for operand in operands if operand != node]
        if node not in operands or len(rest) != 1:
            return False
        base, factor = _find_base(side, rest[0])
        bases.append(base if base >= 0 else rest[0])
        others.append(rest[0])
        factors.append(factor * _find_base(side, node)[1])
    if not abs(factors[0] - factors[1]) <= _SAME_FACTOR * abs(factors[0]):
        return False
    if others[0] == others[1]:
        scaled = [base for base in bases if base != others[0]]
        return len(scaled) == 1 and any(side.classes[scaled[0]] < 0 for side in graph.sides)
    return bases[0] == bases[1]
