"""Values that one side scales here and the other side elsewhere: queries, or queries and keys.

So are their gradients: that of 2 x is half of that of x.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np

from ..graph.gradients import Gradients
from ..model.arrays import Flags, Floats, Ints
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
    nodes = np.flatnonzero(differs & (graph.phase[: len(pairs)] == BACKWARD))
    gradients = graph.comparison.alignment.gradients
    factors = _find_factors(graph, graph.target_classes[nodes], graph.reference_classes[nodes])
    is_multiple = np.abs(factors - 1) > _SAME_FACTOR  # NaN is none
    if gradients is None or not is_multiple.any():
        return frozenset()
    values_of_t, values_of_r = _map_values(gradients[0]), _map_values(gradients[1])
    candidates = [
        (row, value_t, value_r)
        for row in np.flatnonzero(is_multiple).tolist()
        for value_t, value_r in itertools.product(
            values_of_t[int(graph.target_classes[nodes[row]])],
            values_of_r[int(graph.reference_classes[nodes[row]])],
        )
    ]
    rows, values_t, values_r = np.array(candidates, dtype=int).reshape(-1, 3).T
    products = factors[rows] * _find_factors(graph, values_t, values_r)
    return frozenset(nodes[rows[np.abs(products - 1) <= _SAME_FACTOR]].tolist())


def _map_values(gradients: Gradients) -> dict[int, set[int]]:
    """Return gradient -> the values whose gradient it is, or a term of that."""
    values_of: defaultdict[int, set[int]] = defaultdict(set)
    for value, gradient in gradients.by_value.items():
        values_of[gradient].add(value)
    for (_, operand, _), term in gradients.by_edge.items():
        values_of[term].add(operand)
    return values_of


def _find_factors(graph: JointGraph, values_t: Ints, values_r: Ints) -> Floats:
    """Return (values,) by which number the reference's values are multiplied on the target.

    It may be negative. The extremes and the norm have to show it: NaN where they show none.
    """
    (size_t, high_t, low_t, norm_t), (size_r, high_r, low_r, norm_r) = (
        [side.flow.classes[name].to_numpy(dtype=float)[values] for name in _NUMBERS]
        for side, values in zip(graph.sides, (values_t, values_r), strict=True)
    )
    factors = np.full(len(values_t), math.nan)
    with np.errstate(all="ignore"):
        ratios = norm_t / norm_r
        for sign, first, last in ((1, high_r, low_r), (-1, low_r, high_r)):
            high, low = sign * ratios * first, sign * ratios * last
            slack = _SAME_FACTOR * np.maximum(np.abs(high), np.abs(low))
            is_scaled = (np.abs(high_t - high) <= slack) & (np.abs(low_t - low) <= slack)
            factors = np.where(is_scaled & np.isnan(factors), sign * ratios, factors)
    is_known = (size_t == size_r) & (size_t >= _MIN_SIZE) & (norm_t > 0) & (norm_r > 0)
    return np.where(is_known, factors, math.nan)


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
