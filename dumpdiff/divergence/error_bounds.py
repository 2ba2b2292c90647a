"""How large an error may be when the inputs agree: the operator's conditioning, and cancellation.

Both are relative to the root mean square of the tensors. Their product is what a rule and the
statistics of a pair can say. ``recomputation`` replaces it where the operator can be run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Floats, Ints
from ..rulebook import Rules
from .joint_graph import JointGraph

#: Kinds whose terms can cancel.
_CANCELING_KINDS = frozenset({"add", "sub", "sum", "mean", "matmul"})
#: Kind of an msprobe record of a parameter's gradient. It names no inputs.
_PARAMETER_GRADIENT = "parameters"
#: Kind whose gradient is a sum of products where a factor was broadcast, of at least two terms.
_PRODUCT, _MIN_BROADCAST_TERMS = "mul", 2
#: Kinds that add up tensors element by element.
_SUM_KINDS = frozenset({"add", "sub"})
#: Kinds that keep relative errors where all inputs but one are single numbers.
SCALING_KINDS = frozenset({"mul", "div"})
#: Takes the place of a root mean square of 0 in a division.
_TINY = 1e-300


@dataclass(frozen=True)
class _Production:
    """How one side produced the value of a node."""

    flow: Flow
    classes: Ints  #: (nodes,) the side's classes
    value: int  #: class
    producer: int
    kind: str  #: canonical kind of the producer


def compute_conditioning(graph: JointGraph, rules: Rules) -> Floats:
    """Return (pairs,) how much each value's producer may enlarge relative errors; 1 for leaves."""
    factors = np.ones(len(graph.comparison.pairs))
    for node in range(len(factors)):
        for production in _list_productions(graph, node):
            factors[node] = max(factors[node], rules.get_conditioning(production.kind))
    return factors


def compute_cancellation(graph: JointGraph) -> Floats:
    """Return (nodes,) sum|x| / |sum x| of the sum that produced each value; 1 if it is no sum.

    Both sums are taken by root mean squares, and the result is at least 1. This is the condition
    number of summation (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
    4.2): rounding errors are relative to the terms, and a sum of terms that cancel is small
    compared with them. The larger sum counts, and of the terms, the smaller ones. A product with a
    single number has the cancellation of its other factor.
    """
    factors = np.ones(graph.n_nodes)
    productions_of_nodes = [_list_productions(graph, node) for node in range(graph.n_nodes)]
    for node, productions in enumerate(productions_of_nodes):
        terms = [_add_terms(graph, node, production) for production in productions]
        known_terms = [total for total in terms if math.isfinite(total)]
        if known_terms:
            sums = [production.flow.rms[production.value] for production in productions]
            factors[node] = max(1.0, min(known_terms) / max(*sums, _TINY))
    scaled_nodes = _find_scaled_nodes(graph, productions_of_nodes)
    for node in graph.order:
        source = scaled_nodes.get(node, node)
        factors[node] = max(factors[node], factors[source])
    return factors


def _find_scaled_nodes(
    graph: JointGraph, productions_of_nodes: Sequence[Sequence[_Production]]
) -> dict[int, int]:
    """Return node -> the node that it is a multiple of, as by clipping or a loss scale."""
    target = graph.comparison.alignment.target
    scaled_nodes = {}
    for node, productions in enumerate(productions_of_nodes):
        for production in productions:
            if production.kind.removeprefix("grad:") not in SCALING_KINDS:
                continue
            flow = production.flow
            inputs = [value for value in flow.reads[production.producer] if flow.sizes[value] > 1]
            if len(inputs) == 1 and flow.sizes[inputs[0]] == flow.sizes[production.value]:
                nodes = graph.target_nodes if flow is target else graph.reference_nodes
                scaled_nodes[node] = int(nodes[inputs[0]])
    return scaled_nodes


def _add_terms(graph: JointGraph, node: int, production: _Production) -> float:
    """Return what the terms of one element add up to if none cancel, NaN if it is no sum.

    The gradient of a parameter with one axis is the sum of the gradients of all rows (times what
    multiplied the parameter). A record of it names no inputs; the joint graph has them. The bias of
    a convolution before a norm is such a parameter: the norm takes it away, and nothing but
    rounding is left of its gradient.
    """
    flow, kind = production.flow, production.kind.removeprefix("grad:")
    inputs = list(flow.reads[production.producer])
    if kind == _PARAMETER_GRADIENT:
        kind = "sum"
        inputs = [int(production.classes[parent]) for parent in graph.parents[node]]
        inputs = [parent for parent in inputs if parent >= 0]
    elif _is_vector_gradient(flow, production):
        kind = "sum"
    elif kind == _PRODUCT:
        return _add_broadcast_terms(flow, production.value, production.producer)
    if kind not in _CANCELING_KINDS:
        return math.nan
    return _sum_terms(flow, production.value, inputs, kind)


def _add_broadcast_terms(flow: Flow, value: int, record: int) -> float:
    """Return what the terms of the gradient of a broadcast factor add up to, NaN if it is none.

    It is the sum of the products of the given gradient and the other factor.
    """
    call = int(flow.trace.ops["forward"].iat[record])
    if call < 0 or not flow.reads[record]:
        return math.nan
    given_gradient = flow.reads[record][0]
    n_terms = int(flow.sizes[given_gradient]) // max(1, int(flow.sizes[value]))
    factors = [factor for factor in flow.operands[call] if flow.sizes[factor] > flow.sizes[value]]
    if n_terms < _MIN_BROADCAST_TERMS or len(factors) != 1:
        return math.nan
    return n_terms * flow.rms[given_gradient] * flow.rms[factors[0]]


def _is_vector_gradient(flow: Flow, production: _Production) -> bool:
    """Return whether a backward record of a call that is no sum gives a value with one axis."""
    is_backward_record = flow.trace.ops["forward"].iat[production.producer] >= 0
    if not is_backward_record or production.kind.removeprefix("grad:") in _CANCELING_KINDS:
        return False
    shape = flow.tensors["shape"].iat[int(flow.list_column("tensor")[production.value])]
    return shape is not None and len(shape) == 1


def build_visibility_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): how much of a node's relative error the child shows.

    It is a lower bound. A single number computed from n terms with errors of random sign shows one
    part in sqrt(n) of their relative error (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem
    2.4). An addition shows the node's share of the result. Sums of rows that are used with the rows
    again, as in a norm, are taken to show everything: a judgment call.
    """
    sizes = np.fmax(1.0, _average_class_column(graph, lambda flow: flow.sizes)).tolist()
    compute_share = build_share_function(graph)

    def compute_visibility(node: int, child: int) -> float:
        reduction = 1.0 if sizes[child] > 1 else 1 / math.sqrt(sizes[node])
        return compute_share(node, child) * reduction

    return compute_visibility


def build_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): the node's share of a child that is a sum, at most 1.

    The share is a ratio of root mean squares; 1 where the child is no sum. The relative error of a
    sum is that of its terms times their shares: a new weight differs by little of what a step
    differs by.
    """
    alignment = graph.comparison.alignment
    rms = _average_class_column(graph, lambda flow: np.asarray(flow.rms, dtype=float)).tolist()
    is_sum = [False] * graph.n_nodes
    for flow, classes, kinds in (
        (alignment.reference, graph.reference_classes, alignment.reference_kinds),
        (alignment.target, graph.target_classes, alignment.target_kinds),
    ):
        for node, value in enumerate(classes.tolist()):
            if value >= 0:
                producer = flow.producers[value]
                is_sum[node] |= bool(producer >= 0) and kinds[producer] in _SUM_KINDS

    def compute_share(node: int, child: int) -> float:
        has_share = is_sum[child] and rms[child] > 0
        if not has_share:
            return 1.0
        share: float = rms[node] / rms[child]
        if not math.isfinite(share):
            return 1.0
        return min(1.0, share)

    return compute_share


def _average_class_column(graph: JointGraph, read_column: Callable[[Flow], AnyArray]) -> Floats:
    """Return (nodes,) a column of the classes: the mean of the sides that have the value."""
    alignment = graph.comparison.alignment
    columns = np.full((2, graph.n_nodes), np.nan)
    for column, flow, classes in (
        (columns[0], alignment.target, graph.target_classes),
        (columns[1], alignment.reference, graph.reference_classes),
    ):
        has_value = classes >= 0
        column[has_value] = read_column(flow)[classes[has_value]]
    is_known = ~np.isnan(columns)
    n_known = np.maximum(is_known.sum(axis=0), 1)
    means = np.where(is_known, columns, 0.0).sum(axis=0) / n_known
    averages: Floats = np.where(is_known.any(axis=0), means, np.nan)
    return averages


def _list_productions(graph: JointGraph, node: int) -> list[_Production]:
    """Return how a node's value was produced: by the target, by the reference, or by both."""
    alignment = graph.comparison.alignment
    productions = []
    for flow, classes, kinds in (
        (alignment.target, graph.target_classes, alignment.target_kinds),
        (alignment.reference, graph.reference_classes, alignment.reference_kinds),
    ):
        value = int(classes[node])
        producer = int(flow.producers[value]) if value >= 0 else -1
        if producer >= 0:
            productions.append(_Production(flow, classes, value, producer, kinds[producer]))
    return productions


def _sum_terms(flow: Flow, value: int, inputs: list[int], kind: str) -> float:
    """Return what the terms of one element add up to if none cancel, by root mean squares."""
    rms = flow.rms
    sizes: list[float] = flow.list_column("size")
    inputs = [read for read in inputs if math.isfinite(rms[read])]
    if not inputs:
        return 0.0
    size = max(1, sizes[value])
    if kind == "matmul":
        # n products of random sign add up to sqrt(n) of one: that is no cancellation
        factor_sizes = (max(1.0, sizes[inputs[0]]), max(1.0, sizes[inputs[-1]]))
        length = math.sqrt(math.prod(factor_sizes) / size)
        return math.sqrt(length) * rms[inputs[0]] * rms[inputs[-1]]
    if kind == "sum":
        return sum(rms[read] * max(1.0, sizes[read] / size) for read in inputs)
    return sum(rms[read] for read in inputs)
