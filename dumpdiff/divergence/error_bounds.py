"""How far a value may be off when what it was computed from agrees: the operator's conditioning, and cancellation.

Both are relative to the root mean square of the tensors; their product is what a rule and the statistics of a pair can
say. ``recomputed`` replaces it where the operator can be run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Floats
from ..rulebook import Rules
from .joint_graph import JointGraph

_ADDS = frozenset({"add", "sub", "sum", "mean", "matmul"})  # kinds whose terms can cancel
_SUMS = frozenset({"add", "sub"})  # kinds that add up tensors element by element


def compute_conditioning(graph: JointGraph, rules: Rules) -> Floats:
    """(pairs,) by how much each value's maker may enlarge the relative error of its inputs; 1 for leaves."""
    factors = np.ones(len(graph.comparison.pairs))
    for node, _, _, _, kind in _made(graph, len(factors)):
        factors[node] = rules.get_conditioning(kind)
    return factors


def compute_cancellation(graph: JointGraph) -> Floats:
    """(nodes,) sum|x| / |sum x| of the sum that made each value, by root mean squares; 1 if it does not cancel.

    The condition number of summation (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2):
    rounding errors are relative to the terms, and a sum of terms that cancel is small beside them.
    """
    factors = np.ones(graph.n_nodes)
    for node, flow, value, maker, kind in _made(graph, graph.n_nodes):
        if (kind := kind.removeprefix("grad:")) in _ADDS:
            factors[node] = max(
                1.0, _terms(flow, value, maker, kind) / max(flow.rms[value], 1e-300)
            )
    return factors


def build_visibility_function(graph: JointGraph) -> Callable[[int, int], float]:
    """A function of (node, child): how much of a node's relative error a value computed from it shows at least.

    A single number made of n terms with errors of random sign shows one part in sqrt(n) of their relative error (Higham
    and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4); an addition only the node's share of the result. Sums of rows
    stand beside the rows again, as in a norm, and are taken to show all: a judgement call.
    """
    sizes = np.fmax(1.0, _of_nodes(graph, lambda flow: flow.sizes)).tolist()
    share = build_share_function(graph)
    return lambda node, child: share(node, child) * (
        1.0 if sizes[child] > 1 else 1 / math.sqrt(sizes[node])
    )


def build_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """A function of (node, child): the node's part in a child that is a sum, by root mean squares; at most 1.

    The relative error of a sum is that of its terms, each times its part: a new weight is off by little of what a step
    is off by. 1 where the child is no sum.
    """
    alignment = graph.comparison.alignment
    rms = _of_nodes(graph, lambda flow: np.asarray(flow.rms, dtype=float)).tolist()
    adds = [False] * graph.n_nodes
    for flow, class_of, kinds in (
        (alignment.reference, graph.reference_classes, alignment.reference_kinds),
        (alignment.target, graph.target_classes, alignment.target_kinds),
    ):
        for node, value in enumerate(class_of.tolist()):
            if value >= 0:
                adds[node] = flow.producers[value] >= 0 and kinds[flow.producers[value]] in _SUMS

    def share(node: int, child: int) -> float:
        part = rms[node] / rms[child] if adds[child] and rms[child] > 0 else 1.0
        return min(1.0, part) if math.isfinite(part) else 1.0

    return share


def _of_nodes(graph: JointGraph, column: Callable[[Flow], AnyArray]) -> Floats:
    """(nodes,) a column of the classes, of the target's where it has the value."""
    alignment = graph.comparison.alignment
    found = np.full(graph.n_nodes, np.nan)
    for flow, class_of in ((alignment.reference, graph.reference_classes), (alignment.target, graph.target_classes)):
        here = class_of >= 0
        found[here] = column(flow)[class_of[here]]
    return found


def _made(graph: JointGraph, nodes: int) -> Iterator[tuple[int, Flow, int, int, str]]:
    """(node, side, class, maker, its kind) of the first nodes, where an op of either side made them."""
    alignment = graph.comparison.alignment
    sides = (
        (
            alignment.target,
            graph.target_classes,
            alignment.target_kinds,
            alignment.target.classes["producer"].to_numpy(),
        ),
        (
            alignment.reference,
            graph.reference_classes,
            alignment.reference_kinds,
            alignment.reference.classes["producer"].to_numpy(),
        ),
    )
    for node in range(nodes):
        for flow, class_of, kinds, producer in sides:
            value = int(class_of[node])
            if value >= 0 and producer[value] >= 0:
                yield node, flow, value, int(producer[value]), kinds[producer[value]]
                break


def _terms(flow: Flow, value: int, maker: int, kind: str) -> float:
    """What the terms of one element would add up to if none cancelled, from the inputs' root mean squares."""
    rms = flow.rms
    sizes: list[float] = flow.list_column("size")
    inputs = [v for v in flow.reads[maker] if math.isfinite(rms[v])]
    if not inputs:
        return 0.0
    size = max(1, sizes[value])
    if (
        kind == "matmul"
    ):  # n products of random sign add up to sqrt(n) of one: that is no cancellation
        length = math.sqrt(sizes[inputs[0]] * sizes[inputs[-1]] / size)
        return math.sqrt(length) * rms[inputs[0]] * rms[inputs[-1]]
    if kind == "sum":
        return sum(rms[v] * max(1.0, sizes[v] / size) for v in inputs)
    return sum(rms[v] for v in inputs)
