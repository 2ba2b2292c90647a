"""How large an error may be when the inputs agree: the operator's conditioning.

It is relative to the root mean square of the tensors. Times the ``cancellation`` it is what a rule
and the statistics of a pair can say. ``recomputation`` replaces it where the operator can be run
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..comparison.mask_fill import FILLING_KINDS
from ..comparison.statistics import compute_extreme_factors
from ..graph import Flow
from ..model.arrays import Flags, Floats
from ..model.dtypes import is_floating
from ..rulebook import Rules
from .joint_graph import GraphSide, JointGraph

_PRODUCT = "mul"
#: Kind of what no recorded op made of other values: most are sums of the gradients of two readers.
_UNRECORDED_KIND = "add"
#: Kinds whose gradient is the given one times signs or a mask.
_MASKING_KINDS = frozenset({"abs", "relu"})
#: Relative error of the sum of squares of a mask, by float32 sums and six printed digits.
_SQUARE_ERROR = 1e-5
_SOFTMAX, _LOG_SOFTMAX = "softmax", "log_softmax"
#: Kinds that square each element, and the condition number of a square: |x f'(x) / f(x)|.
_SQUARE_KINDS = frozenset({"square", "pow"})
_SQUARE = 2.0
#: Kinds of monotonic functions of one value, and whether they rise.
_MONOTONIC_FUNCTIONS: dict[str, tuple[Callable[[float], float], bool]] = {
    "sqrt": (np.sqrt, True),
    "exp": (np.exp, True),
    "log": (np.log, True),
    "rsqrt": (lambda x: 1 / np.sqrt(x), False),
}


def compute_conditioning(graph: JointGraph, rules: Rules) -> Floats:
    """Return (pairs,) how much each value's producer may enlarge relative errors; 1 for leaves."""
    n_pairs = len(graph.comparison.pairs)
    factors = np.zeros(n_pairs)
    for side in graph.sides:
        factors_of_ops = side.op_kinds.measure(rules.get_conditioning)
        producers = side.producers[:n_pairs]
        is_produced = producers >= 0
        factors[is_produced] = np.maximum(
            factors[is_produced], factors_of_ops[producers[is_produced]]
        )
    is_leaf = graph.parents.counts[:n_pairs] == 0
    unrecorded_factors = np.where(is_leaf, 1.0, rules.get_conditioning(_UNRECORDED_KIND))
    return np.where(factors > 0, factors, unrecorded_factors)


def compute_elementwise_errors(graph: JointGraph, errors: Sequence[float]) -> Floats:
    """Return (pairs,) how far statistics may differ because those of the input do; 0: unknown.

    Pairs whose error, of (pairs,) ``errors``, is within their tolerance need none and are left out.
    A relative L2 error of the input says nothing about single elements, but its extremes do. They
    bound what follows for squares, and give what follows for monotonic functions. Where elements
    are multiplied by signs or a mask, others become the extremes.
    """
    pairs = graph.comparison.pairs
    is_open = np.array(errors) > pairs["tolerance"].to_numpy()
    is_chosen = is_open & (pairs["metric"] == "statistics").to_numpy()
    elementwise_errors = np.zeros(len(pairs))
    if not is_chosen.any():
        return elementwise_errors
    for node, root in _iterate_roots(graph, _flag_squares, is_chosen):
        elementwise_errors[node] = _bound_square(graph, root)
    # the other two are about differences of extremes
    is_chosen &= pairs["statistic"].isin(("max", "min")).to_numpy()
    for node, root in _iterate_roots(graph, _flag_monotonic, is_chosen):
        elementwise_errors[node] = _apply_to_extremes(graph, node, root)
    for node in _iterate_masked(graph, is_chosen):
        elementwise_errors[node] = _bound_extremes(graph, node)
    for node, scores in _iterate_scores(graph, is_chosen, _SOFTMAX):
        elementwise_errors[node] = _bound_scores(graph, node, scores)
    return elementwise_errors


def compute_logarithm_errors(graph: JointGraph, errors: Sequence[float]) -> Floats:
    """Return (pairs,) how far extremes of masked log-probabilities may differ; 0 for other values.

    Pairs whose error, of (pairs,) ``errors``, is within their tolerance need none and are left out.
    What the mask leaves may be as near to zero as one score is above the others: there is no limit.
    """
    pairs = graph.comparison.pairs
    is_chosen = np.array(errors) > pairs["tolerance"].to_numpy()
    is_chosen &= pairs["statistic"].isin(("max", "min")).to_numpy()
    logarithm_errors = np.zeros(len(pairs))
    for node, scores in _iterate_scores(graph, is_chosen, _LOG_SOFTMAX):
        if all(side.kinds[side.find_producer(node)] == _LOG_SOFTMAX for side in graph.sides):
            logarithm_errors[node] = _bound_scores(graph, node, scores)
    return logarithm_errors


def _iterate_scores(
    graph: JointGraph, is_chosen: Flags, function: str
) -> Iterator[tuple[int, int]]:
    """Yield masked scores and what a function makes of them, and the scores both sides mask."""
    scores_of_sides: list[dict[int, int]] = []
    for side in graph.sides:
        scores_of: dict[int, int] = {}
        producers = side.producers[: len(is_chosen)]
        for node in np.flatnonzero(is_chosen & (producers >= 0)).tolist():
            value = int(side.classes[node])
            if side.kinds[int(producers[node])] == function:
                value = _find_operand_of_size(side, value)
            if value >= 0 and side.kinds[int(side.flow.producers[value])] in FILLING_KINDS:
                scores = _find_operand_of_size(side, value)
                if scores >= 0:
                    scores_of[node] = int(side.nodes[scores])
        scores_of_sides.append(scores_of)
    for node, scores in scores_of_sides[0].items():
        if scores_of_sides[1].get(node) == scores < len(is_chosen):
            yield node, scores


def _find_operand_of_size(side: GraphSide, value: int) -> int:
    """Return the only floating operand of a value's op that has its size, -1 if there is none."""
    flow, dtypes = side.flow, side.flow.list_column("dtype")
    producer = int(flow.producers[value])
    operands = [
        operand
        for operand in (flow.operands[producer] if producer >= 0 else ())
        if flow.sizes[operand] == flow.sizes[value] and is_floating(str(dtypes[operand]))
    ]
    return int(operands[0]) if len(operands) == 1 else -1


def _bound_scores(graph: JointGraph, node: int, scores: int) -> float:
    """Return the error of an extreme if one of the scores has all of the error of the tensor.

    A mask hides the size of the scores: what it leaves may be near zero, and then a small part of
    it is a large one of that. The relative error of a probability is at most twice the absolute one
    of the scores: exp(x + d) / sum(exp(x + d)) has it above and below. So has its logarithm, which
    is near zero where one score is far above the others.
    """
    tolerance = float(graph.comparison.pairs["tolerance"].iat[scores])
    bounds = [0.0]
    for side in graph.sides:
        before, value = int(side.classes[scores]), int(side.classes[node])
        size = float(side.flow.sizes[before])
        largest_error = tolerance * float(side.rms[before]) * math.sqrt(size)
        largest_error /= float(compute_extreme_factors(np.array([size]))[0])
        high, rms = abs(float(side.flow.list_column("max")[value])), float(side.rms[value])
        kind = side.kinds[side.find_producer(node)]
        if kind in FILLING_KINDS:
            bounds.append(largest_error / high if high > 0 else 0.0)
        elif kind == _LOG_SOFTMAX:
            bounds.append(2 * largest_error / high if high > 0 else 0.0)
        elif rms > 0 and _have_equal_sums(graph, node):
            bounds.append(2 * largest_error * high / rms)
    return float(np.nanmax(bounds))


def _iterate_masked(graph: JointGraph, is_chosen: Flags) -> Iterator[int]:
    """Yield the pairs that both sides compute from one pair by signs or masks for its elements."""
    sources: list[dict[int, int]] = []
    for side in graph.sides:
        flow, producers = side.flow, side.producers
        source_of: dict[int, int] = {}
        for node in np.flatnonzero(is_chosen & (producers[: len(is_chosen)] >= 0)).tolist():
            producer, size = int(producers[node]), flow.sizes[side.classes[node]]
            kind, values = side.kinds[producer], list(flow.reads[producer])
            is_gradient = flow.calls[producer] >= 0 or kind.startswith("grad:")
            if kind == _PRODUCT and not is_gradient:
                values = [value for value in values if flow.sizes[value] == size]
                is_mask = [_has_signs_or_mask(flow, value) for value in values]
                if is_mask in ([True, False], [False, True]):
                    source_of[node] = int(side.nodes[values[is_mask.index(False)]])
            elif is_gradient and kind.removeprefix("grad:") in _MASKING_KINDS and values:
                source_of[node] = int(side.nodes[values[0]])
        sources.append(source_of)
    for node, source in sources[0].items():
        if sources[1].get(node) == source:
            yield node


def _has_signs_or_mask(flow: Flow, value: int) -> bool:
    """Return whether all elements are 0 or 1, or -1 or 1, by the statistics.

    The squares of such elements add up to as much as the elements or their number.
    """
    high, low, mean, size = (
        float(flow.list_column(name)[value]) for name in ("max", "min", "mean", "size")
    )
    square = float(flow.norms[value]) ** 2
    slack = _SQUARE_ERROR * size
    if (high, low) == (1, -1):
        return abs(square - size) <= slack
    return (high, low) == (1, 0) and abs(square - mean * size) <= slack


def _bound_extremes(graph: JointGraph, node: int) -> float:
    """Return the largest error of one element if that of the tensor is its tolerance.

    0 if the tensor differs by more. An element has at most all of the tensor's error, the root of
    the number of elements times its root mean square. What statistics allow for an extreme is for
    errors of normal distribution, see ``comparison.statistics``. Those of a function such as tanh
    are large in few elements, which no statistic of the function shows.
    """
    if not _have_equal_sums(graph, node):
        return 0.0
    side = graph.sides[0]
    size = float(side.flow.sizes[int(side.classes[node])])
    tolerance = float(graph.comparison.pairs["tolerance"].iat[node])
    return tolerance * math.sqrt(size) / float(compute_extreme_factors(np.array([size]))[0])


def _have_equal_sums(graph: JointGraph, node: int) -> bool:
    """Return whether mean and norm differ by no more than the tolerance."""
    scales: list[float] = []
    means: list[float] = []
    for side in graph.sides:
        value = int(side.classes[node])
        scales.append(side.flow.rms[value])
        means.append(side.flow.list_column("mean")[value])
    limit = float(graph.comparison.pairs["tolerance"].iat[node]) * max(scales)
    has_equal_means = not abs(means[0] - means[1]) > limit  # some dumps have none
    return has_equal_means and abs(scales[0] - scales[1]) <= limit


def _iterate_roots(
    graph: JointGraph, flag_ops: Callable[[GraphSide], Flags], is_chosen: Flags
) -> Iterator[tuple[int, int]]:
    """Yield (pair, pair of the one value of its size that both sides compute it from).

    ``flag_ops`` says of a side which ops count.
    """
    roots: list[dict[int, int]] = []
    for side in graph.sides:
        flow = side.flow
        producers = side.producers[: len(is_chosen)]
        is_flagged = is_chosen & (producers >= 0) & flag_ops(side)[producers]
        root_of: dict[int, int] = {}
        for node in np.flatnonzero(is_flagged).tolist():
            value = flow.reads[int(producers[node])][0]
            if flow.sizes[value] == flow.sizes[side.classes[node]]:
                root_of[node] = int(side.nodes[value])
        roots.append(root_of)
    for node, root in roots[0].items():
        if roots[1].get(node) == root and root < len(is_chosen):
            yield node, root


def _bound_square(graph: JointGraph, root: int) -> float:
    """Return how far the norm of the squares of a pair may differ.

    A square has twice the relative error of what it is the square of (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., section 1.6). Its norm weighs elements by their
    squares: it shows the error of the largest ones. What the statistics of the input differ by, an
    extreme among them, is the error of such elements.
    """
    difference = float(graph.comparison.pairs["statistic_error"].iat[root])
    return _SQUARE * difference if difference > 0 else 0.0


def _apply_to_extremes(graph: JointGraph, node: int, root: int) -> float:
    """Return what the error of an extreme is if it is that of the input, put in the function.

    The root of numbers near zero differs by far more than they do. 0 if another statistic decides,
    or if mean or norm differ by more than the tolerance.
    """
    if not _have_equal_sums(graph, node):
        return 0.0
    pairs = graph.comparison.pairs
    column = str(pairs["statistic"].iat[node])
    kind = graph.sides[0].kinds[graph.sides[0].find_producer(node)]
    function, is_rising = _MONOTONIC_FUNCTIONS[kind]
    input_column = column if is_rising else {"max": "min", "min": "max"}[column]
    inputs, outputs = [], []
    for side in graph.sides:
        flow = side.flow
        inputs.append(float(flow.list_column(input_column)[int(side.classes[root])]))
        outputs.append(float(flow.list_column(column)[int(side.classes[node])]))
    with np.errstate(all="ignore"):
        expected = abs(float(function(inputs[0])) - float(function(inputs[1])))
    difference = abs(outputs[0] - outputs[1])
    if not difference > 0 or not math.isfinite(expected):
        return 0.0
    error, tolerance = float(pairs["error"].iat[node]), float(pairs["tolerance"].iat[node])
    return error * expected / difference + tolerance


def _flag_monotonic(side: GraphSide) -> Flags:
    """Return (ops,) whether each op applies a monotonic function to the one value it reads."""
    is_monotonic = side.op_kinds.flag(_MONOTONIC_FUNCTIONS.__contains__)
    flags: Flags = is_monotonic & (side.flow.reads.counts == 1)
    return flags


def _flag_squares(side: GraphSide) -> Flags:
    """Return (ops,) whether each op squares the one value that it reads."""
    flow = side.flow
    table = flow.tensors
    is_read = (table["slot_kind"] != "output").to_numpy() & (flow.tensor_class >= 0)
    n_inputs = np.bincount(table["op"].to_numpy()[is_read], minlength=len(side.kinds))
    is_own_product = side.op_kinds.flag(lambda kind: kind == _PRODUCT) & (n_inputs > 1)
    is_square = side.op_kinds.flag(_SQUARE_KINDS.__contains__) | is_own_product
    flags: Flags = is_square & (flow.reads.counts == 1)
    return flags
