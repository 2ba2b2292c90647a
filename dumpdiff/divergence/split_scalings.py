"""Values that one side scales here and the other side elsewhere: queries, or queries and keys.

So are their gradients: that of 2 x is half of that of x.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np

from ..graph.gradients import Gradients
from ..model.arrays import Flags
from ..model.trace import BACKWARD, FORWARD
from .joint_graph import GraphSide, JointGraph

#: Kinds of operators that multiply by a number, and of those that multiply the scaled values.
_SCALING_KINDS = frozenset({"mul", "div"})
_PRODUCT_KINDS = frozenset({"matmul", "mul"})
#: What is equal of equal values.
_NUMBERS = ("size", "max", "min", "norm")
#: Relative difference of numbers, of which statistics have six digits, and of their products.
_SAME_FACTOR = 1e-4
#: Elements from which on extremes and a norm show a factor.
_MIN_SIZE = 4


def find_split_scalings(graph: JointGraph) -> frozenset[int]:
    """Return the forward pairs of one value times other numbers, which their products undo.

    What is scaled by d^-1/2 is multiplied by k on one side; what is scaled by d^-1/4 by d^-1/4 k
    on the other side. Or one side scales a mask, the other side what the mask leaves. Such a pair
    differs, and is no difference of the two computations. That needs no agreement below: the
    numbers follow from the norms of each side.
    """
    pairs = graph.comparison.pairs
    differs = pairs["error"].to_numpy(dtype=float) > pairs["tolerance"].to_numpy(dtype=float)
    is_forward = graph.phase[: len(pairs)] == FORWARD
    return frozenset(
        node
        for node in np.flatnonzero(differs & is_forward).tolist()
        if (multiplies_one_value(graph, node) or _multiplies_on_one_side(graph, node))
        and _is_undone(graph, node, differs)
    )


def find_scaled_gradients(graph: JointGraph) -> frozenset[int]:
    """Return the pairs of gradients of two values of which one is a multiple of the other.

    If v is c w, the gradient of v is 1 / c times that of w. One side halves the squares, the other
    one their sum: then the gradients of the squares differ, and no computation does.
    """
    pairs = graph.comparison.pairs
    differs = pairs["error"].to_numpy(dtype=float) > pairs["tolerance"].to_numpy(dtype=float)
    nodes = np.flatnonzero(differs & (graph.phase[: len(pairs)] == BACKWARD)).tolist()
    factors = {
        node: _find_factor(graph, tuple(int(side.classes[node]) for side in graph.sides))
        for node in nodes
    }
    factors = {node: factor for node, factor in factors.items() if abs(factor - 1) > _SAME_FACTOR}
    gradients = graph.comparison.alignment.gradients
    if not factors or gradients is None:
        return frozenset()
    values_of_t, values_of_r = _map_values(gradients[0]), _map_values(gradients[1])
    return frozenset(
        node
        for node, factor in factors.items()
        if any(
            math.isclose(factor * _find_factor(graph, values), 1.0, rel_tol=_SAME_FACTOR)
            for values in itertools.product(
                values_of_t[int(graph.target_classes[node])],
                values_of_r[int(graph.reference_classes[node])],
            )
        )
    )


def _map_values(gradients: Gradients) -> dict[int, set[int]]:
    """Return gradient -> the values whose gradient it is, or a term of that."""
    values_of: defaultdict[int, set[int]] = defaultdict(set)
    for value, gradient in gradients.by_value.items():
        values_of[gradient].add(value)
    for (_, operand, _), term in gradients.by_edge.items():
        values_of[term].add(operand)
    return values_of


def _find_factor(graph: JointGraph, classes: tuple[int, ...]) -> float:
    """Return the number by which the reference's value is multiplied on the target; NaN if none is.

    It may be negative. The extremes and the norm have to show it.
    """
    numbers_t, numbers_r = (
        [side.flow.list_column(name)[value] for name in _NUMBERS]
        for side, value in zip(graph.sides, classes, strict=True)
    )
    (size_t, high_t, low_t, norm_t), (size_r, high_r, low_r, norm_r) = numbers_t, numbers_r
    if size_t != size_r or size_t < _MIN_SIZE or not (norm_r > 0 and norm_t > 0):
        return math.nan
    factor = float(norm_t / norm_r)
    for sign, ends in ((1, (high_r, low_r)), (-1, (low_r, high_r))):
        scaled_ends = [sign * factor * end for end in ends]
        slack = _SAME_FACTOR * max(map(abs, scaled_ends))
        if abs(high_t - scaled_ends[0]) <= slack and abs(low_t - scaled_ends[1]) <= slack:
            return sign * factor
    return math.nan


def multiplies_one_value(graph: JointGraph, node: int) -> bool:
    """Return whether both sides compute a pair as one value times a number, recorded or not."""
    bases = [_find_base(side, node)[0] for side in graph.sides]
    return bases[0] == bases[1] >= 0


def _multiplies_on_one_side(graph: JointGraph, node: int) -> bool:
    """Return whether one side computes a pair as the other side's value times a number."""
    for own, other in (graph.sides, graph.sides[::-1]):
        base = _find_base(own, node)[0]
        if base < 0 or _find_base(other, node)[0] >= 0:
            continue
        if _have_equal_numbers(own, base, other, node):
            return True
    return False


def _have_equal_numbers(own: GraphSide, own_node: int, other: GraphSide, other_node: int) -> bool:
    """Return whether what both sides recorded of two nodes is the same."""
    own_value, other_value = int(own.classes[own_node]), int(other.classes[other_node])
    return all(
        math.isclose(
            own.flow.list_column(name)[own_value],
            other.flow.list_column(name)[other_value],
            rel_tol=_SAME_FACTOR,
        )
        for name in _NUMBERS
    )


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


def _is_undone(graph: JointGraph, node: int, differs: Flags) -> bool:
    """Return whether what is computed from a pair agrees, or is a product of the same numbers.

    One product at least has the same numbers: of a difference without consequence, all agrees.
    """
    n_pairs = len(graph.comparison.pairs)
    products = [
        child for child in graph.children[node] if child < n_pairs and graph.phase[child] == FORWARD
    ]
    undoing_products = [product for product in products if _has_same_product(graph, node, product)]
    return bool(undoing_products) and not differs[np.setdiff1d(products, undoing_products)].any()


def _has_same_product(graph: JointGraph, node: int, product: int) -> bool:
    """Return whether both sides multiply what the pair is a multiple of by multiples of one value.

    The numbers together must be the same on both sides. A value that one side scales may have been
    paired with the scaled one, where both differ for another reason; then the value before the
    scaling has no partner.
    """
    factors, bases, others = [], [], []
    for side in graph.sides:
        # what multiplies the product by a number belongs to it
        scaled_product, product_factor = _find_base(side, product)
        producer = side.find_producer(scaled_product if scaled_product >= 0 else product)
        if producer < 0 or side.kinds[producer] not in _PRODUCT_KINDS:
            return False
        operands = [int(side.nodes[value]) for value in side.flow.operands[producer]]
        rest = [operand for operand in operands if operand != node]
        if node not in operands or len(rest) != 1:
            return False
        base, factor = _find_base(side, rest[0])
        bases.append(base if base >= 0 else rest[0])
        others.append(rest[0])
        factors.append(factor * _find_base(side, node)[1] * product_factor)
    if not abs(factors[0] - factors[1]) <= _SAME_FACTOR * abs(factors[0]):
        return False
    if others[0] == others[1]:
        scaled = [base for base in bases if base != others[0]]
        return len(scaled) == 1 and any(side.classes[scaled[0]] < 0 for side in graph.sides)
    return bases[0] == bases[1]
