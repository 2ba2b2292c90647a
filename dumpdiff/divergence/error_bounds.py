"""How large an error may be when the inputs agree: the operator's conditioning, and cancellation.

Both are relative to the root mean square of the tensors. Their product is what a rule and the
statistics of a pair can say. ``recomputation`` replaces it where the operator can be run again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ..comparison.mask_fill import FILLING_KINDS
from ..comparison.statistics import compute_extreme_factors
from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import MASK_MAGNITUDE, is_floating
from ..model.int_lists import IntLists
from ..model.trace import BACKWARD
from ..rulebook import Rules
from .joint_graph import GraphSide, JointGraph

#: Kinds whose terms can cancel.
_CANCELING_KINDS = frozenset({"add", "sub", "sum", "mean", "matmul", "convolution"})
#: Those of them that add up products.
_PRODUCT_KINDS = frozenset({"matmul", "convolution"})
#: Kinds that add up elements of one tensor. A record of the gradient of one names it as well: that
#: has more elements than what is read, each of them one element of it, divided by a number.
_REDUCING_KINDS = frozenset({"sum", "mean"})
#: Kind of an msprobe record of a parameter's gradient. It names no inputs.
_PARAMETER_GRADIENT = "parameters"
#: Kind whose gradient is a sum of products where a factor was broadcast, of at least two terms.
_PRODUCT, _QUOTIENT, _MIN_BROADCAST_TERMS = "mul", "div", 2
#: Kinds that add up what the ranks of a group give, at least this many.
_REDUCTIONS, _MIN_RANKS = frozenset({"all_reduce", "reduce_scatter"}), 2
#: Kinds that add up tensors element by element.
_SUM_KINDS = frozenset({"add", "sub"})
#: Kind of what no recorded op made of other values: most are sums of the gradients of two readers.
_UNRECORDED_KIND = "add"
#: Kinds that keep relative errors where all inputs but one are single numbers.
SCALING_KINDS = frozenset({"mul", "div"})
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
#: Kinds that take elements out of a tensor, each at most once.
_PART_KINDS = frozenset({"slice", "split"})
#: A single number shows at least this share of the error that is expected of it in 97 of 100 cases:
#: a normal variable is below 1/30 of its deviation with a probability of 2.7 %. Without it the loss
#: of a batch norm with another epsilon agreed by chance, and excused the whole forward pass.
_SHOWN_SHARE = 1 / 30
#: Losses whose gradient is the exponential of sums of log-probabilities, one for each step of their
#: first input (steps, ...).
_PATH_LOSSES = frozenset({"ctc_loss"})
#: Takes the place of a root mean square of 0 in a division.
_TINY = 1e-300


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


def compute_cancellation(graph: JointGraph) -> Floats:
    """Return (nodes,) sum|x| / |sum x| of the sum that produced each value; 1 if it is no sum.

    Both sums are taken by root mean squares, and the result is at least 1. This is the condition
    number of summation (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
    4.2): rounding errors are relative to the terms, and a sum of terms that cancel is small
    compared with them. The larger sum counts, and of the terms, the smaller ones. A product with a
    single number has the cancellation of its other factor. In a gradient that is the exponential of
    a sum x, the error of x is a relative one, |x| times that of x (section 1.6).
    """
    totals, sums = np.full((2, graph.n_nodes), np.nan), np.full((2, graph.n_nodes), np.nan)
    for row, side in enumerate(graph.sides):
        has_value = side.classes >= 0
        sums[row, has_value] = side.rms[side.classes[has_value]]
        totals[row] = _add_terms(graph, side)
        _add_totals_of_ranks(totals[row], side)
        _add_unrecorded_terms(totals[row], graph, side)
    totals[~np.isfinite(totals)] = np.nan
    ratios = np.fmin(*totals) / np.maximum(np.fmax(*sums), _TINY)
    factors = np.fmax(1.0, ratios).tolist()
    for node, exponent in _iterate_exponents(graph):
        factors[node] = max(factors[node], exponent)
    sources = np.full(graph.n_nodes, -1)
    for find_sources in (_find_unwritten_nodes, _find_scaled_nodes):
        nodes, nodes_before = find_sources(graph)
        sources[nodes] = nodes_before
    source_list = sources.tolist()
    for node in graph.sort_nodes(sources >= 0):
        factors[node] = max(factors[node], factors[source_list[node]])
    return np.array(factors, dtype=float)


def _iterate_exponents(graph: JointGraph) -> Iterator[tuple[int, float]]:
    """Yield (node, magnitude of the exponent) of the gradients of log-probabilities of steps."""
    for side in graph.sides:
        flow = side.flow
        for op in np.flatnonzero(_flag_kinds(side, _PATH_LOSSES)[:-1]).tolist():
            if flow.calls[op] >= 0 or not flow.operands[op]:
                continue
            log_probabilities = flow.operands[op][0]
            gradient = flow.recorded_gradients.get(log_probabilities)
            rows = flow.get_tensor_ids(op)
            shapes = flow.tensors["shape"].to_numpy()[
                rows[flow.tensor_class[rows] == log_probabilities]
            ]
            if gradient is not None and len(shapes) and shapes[0]:
                yield int(side.nodes[gradient]), shapes[0][0] * flow.rms[log_probabilities]


def _add_unrecorded_terms(totals: Floats, graph: JointGraph, side: GraphSide) -> None:
    """Put in (nodes,) the totals what the gradients that the readers of one value give add up to.

    PyTorch records no sum of them. Pairs that agree need none.
    """
    flow, pairs = side.flow, graph.comparison.pairs
    if not flow.recorded_gradients:
        return
    values, gradients = np.array(list(flow.recorded_gradients.items()), dtype=np.int64).T
    nodes = side.nodes[gradients]
    is_open = np.ones(graph.n_nodes, dtype=bool)
    is_open[: len(pairs)] = ~(pairs["error"] <= pairs["tolerance"]).to_numpy()
    is_chosen = is_open[nodes] & (flow.producers[gradients] < 0)
    if not is_chosen.any():
        return
    records = {call: op for op, call in enumerate(flow.calls) if call >= 0}
    for value, node in zip(values[is_chosen].tolist(), nodes[is_chosen].tolist(), strict=True):
        addends = [
            other
            for op in flow.consumers[value]
            if op in records
            for other in flow.writes[records[op]]
            if flow.sizes[other] == flow.sizes[value]
        ]
        if len(addends) > 1:
            totals[node] = np.nansum(side.rms[addends])


def _add_totals_of_ranks(totals: Floats, side: GraphSide) -> None:
    """Put what ranks add up in (nodes,) the totals; the largest of each value counts."""
    flow = side.flow
    addends = flow.tensors["addends"].to_numpy()
    rows = np.flatnonzero(np.isfinite(addends) & (flow.tensor_class >= 0))
    np.fmax.at(totals, side.nodes[flow.tensor_class[rows]], addends[rows])


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


def _find_scaled_nodes(graph: JointGraph) -> tuple[Ints, Ints]:
    """Return nodes and the node that each is a multiple of, as by clipping or a loss scale.

    Where both sides say so, the reference comes last.
    """
    nodes_of_sides, sources_of_sides = [], []
    for side in graph.sides:
        sizes = side.flow.sizes
        nodes = np.flatnonzero(_flag_kinds(side, SCALING_KINDS)[side.producers])
        values, positions = side.flow.list_reads(side.producers[nodes])
        is_tensor = sizes[values] > 1
        values, positions = values[is_tensor], positions[is_tensor]
        n_tensors = np.bincount(positions, minlength=len(nodes))
        is_multiple = n_tensors[positions] == 1
        is_multiple &= sizes[values] == sizes[side.classes[nodes[positions]]]
        nodes_of_sides.append(nodes[positions[is_multiple]])
        sources_of_sides.append(side.nodes[values[is_multiple]])
    return np.concatenate(nodes_of_sides), np.concatenate(sources_of_sides)


def _find_unwritten_nodes(graph: JointGraph) -> tuple[Ints, Ints]:
    """Return nodes that no recorded op wrote, and the first node of its size that each is made of.

    A run reduces gradients without a record, or writes the same sum by another op.
    """
    sizes = _average_class_column(graph, lambda flow: flow.sizes)
    has_writer = np.zeros(graph.n_nodes, dtype=bool)
    for side in graph.sides:
        has_writer |= side.producers >= 0
    parents, children = graph.edges
    is_source = ~has_writer[children] & (sizes[parents] == sizes[children])
    nodes, first_edges = np.unique(children[is_source], return_index=True)
    return nodes, parents[is_source][first_edges]


def _add_terms(graph: JointGraph, side: GraphSide) -> Floats:
    """Return (nodes,) what the terms of one element add up to if none cancel, NaN if it is no sum.

    Root mean squares stand for the terms. Those of a product of matrices, n products of random
    sign, add up to sqrt(n) of one: that is no cancellation.

    The gradient of a parameter with one axis is the sum of the gradients of all rows (times what
    multiplied the parameter). A record of it names no inputs; the joint graph has them. The bias of
    a convolution before a norm is such a parameter: the norm takes it away, and nothing but
    rounding is left of its gradient.
    """
    flow = side.flow
    producers = side.producers
    is_named_gradient = _flag_kinds(side, {_PARAMETER_GRADIENT})[producers]
    is_canceling = _flag_kinds(side, _CANCELING_KINDS)[producers]
    is_vector_gradient = _flag_vector_gradients(side) & ~is_named_gradient & ~is_canceling
    is_sum = is_named_gradient | is_vector_gradient | _flag_kinds(side, {"sum"})[producers]
    terms, owners = _list_terms(graph, side, is_named_gradient, is_canceling | is_vector_gradient)
    rms, sizes = side.rms, np.maximum(1.0, flow.sizes)
    # the gradient of an addend that was broadcast is a sum, too
    is_repeating = is_sum | _flag_kinds(side, _SUM_KINDS)[producers]
    n_repetitions = np.where(is_repeating[owners], sizes[terms] / sizes[side.classes[owners]], 1.0)
    magnitudes = rms[terms] * np.maximum(1.0, n_repetitions)
    totals = np.full(graph.n_nodes, np.nan)
    largest_terms = np.zeros(graph.n_nodes)
    np.maximum.at(largest_terms, owners, sizes[terms])
    is_repeated = _flag_kinds(side, _REDUCING_KINDS)[producers] & ~is_named_gradient
    is_repeated &= largest_terms < sizes[side.classes]
    is_added = (is_sum | is_canceling) & ~is_repeated
    totals[is_added] = np.bincount(owners, magnitudes, graph.n_nodes)[is_added]
    is_product = _flag_kinds(side, _PRODUCT_KINDS)[producers] & ~is_vector_gradient
    totals[is_product] = np.nan
    nodes, larger_factors, factors = _find_factors(side, terms, owners, is_product)
    n_products = sizes[larger_factors] * sizes[factors] / sizes[side.classes[nodes]]
    biases = np.bincount(owners, rms[terms], graph.n_nodes)[nodes]
    biases = np.maximum(0.0, biases - rms[larger_factors] - rms[factors])
    products = np.sqrt(np.sqrt(n_products)) * rms[larger_factors] * rms[factors]
    totals[nodes] = products + biases
    for node in np.flatnonzero(_flag_kinds(side, _REDUCTIONS)[producers]).tolist():
        totals[node] = _add_addends(side, int(side.classes[node]), int(producers[node]))
    is_product = _flag_kinds(side, {_PRODUCT, _QUOTIENT})[producers] & ~is_vector_gradient
    totals[is_product] = np.nan
    is_broadcast = is_product & _flag_broadcast_gradients(side)
    for node in np.flatnonzero(is_broadcast).tolist():
        totals[node] = _add_broadcast_terms(side, int(side.classes[node]), int(producers[node]))
    for node in np.flatnonzero(_flag_kinds(side, {_SOFTMAX})[producers]).tolist():
        totals[node] = _multiply_probabilities(side, int(producers[node]))
    _add_terms_of_sums(totals, graph, side, is_sum)
    return totals


def _multiply_probabilities(side: GraphSide, op: int) -> float:
    """Return what the terms of a softmax's gradient y (dy - sum(dy y)) are without the sum.

    The sum takes away what is the same for all elements of a row: nothing but rounding is left if
    all values that the probabilities weigh are equal. NaN for what is no gradient.
    """
    flow = side.flow
    if flow.phases[op] != BACKWARD:
        return math.nan
    call = int(flow.calls[op])
    factors = [*flow.operands[op], *(flow.writes[call] if call >= 0 else ())]
    return math.nan if len(factors) < 2 else float(np.prod(side.rms[factors[:2]]))


def _add_terms_of_sums(totals: Floats, graph: JointGraph, side: GraphSide, is_sum: Flags) -> None:
    """Put in (nodes,) the totals what the terms of sums add up to that an op adds up.

    A sum of sums is one sum: its rounding errors are relative to the terms of all of them. So the
    gradient of a bias that several calls share may be nothing but rounding, as that of each call.
    """
    is_addition = _flag_kinds(side, _SUM_KINDS)[side.producers] & ~is_sum
    is_sum = is_sum & np.isfinite(totals)
    additions = graph.sort_nodes(is_addition)
    terms_of_additions = side.flow.reads.take(side.producers[additions])
    nodes_of_terms = side.nodes[terms_of_additions.values].tolist()
    starts = terms_of_additions.starts.tolist()
    is_known_sum = is_sum.tolist()
    for position, node in enumerate(additions):
        nodes = nodes_of_terms[starts[position] : starts[position + 1]]
        if any(is_known_sum[term_node] for term_node in nodes):
            terms = terms_of_additions.values[starts[position] : starts[position + 1]]
            flags = [is_known_sum[term_node] for term_node in nodes]
            totals[node] = np.where(flags, totals[nodes], side.rms[terms]).sum()
            is_known_sum[node] = True


def _flag_kinds(side: GraphSide, kinds: Collection[str]) -> Flags:
    """Return (ops + 1,) whether the kind of an op, of a gradient that of its operator, is given.

    The last one is False, for values that no op produced.
    """
    return np.append(side.op_kinds.flag_operators(kinds), False)


def _list_terms(
    graph: JointGraph, side: GraphSide, is_named_gradient: Flags, is_computed: Flags
) -> tuple[Ints, Ints]:
    """Return (class, node) of all terms of known size, those of one node in order.

    The terms of a ``is_named_gradient`` node are its parents, of an ``is_computed`` one what its
    producer reads.
    """
    flow = side.flow
    parents, children = graph.edges
    is_term = is_named_gradient[children] & (side.classes[parents] >= 0)
    nodes = np.flatnonzero(is_computed)
    values, positions = flow.list_reads(side.producers[nodes])
    terms = np.append(side.classes[parents[is_term]], values)
    owners = np.append(children[is_term], nodes[positions])
    is_known = np.isfinite(side.rms[terms])
    return terms[is_known], owners[is_known]


def _find_factors(
    side: GraphSide, terms: Ints, owners: Ints, is_product: Flags
) -> tuple[Ints, Ints, Ints]:
    """Return the nodes that are products, with the larger and the smaller factor of each.

    They are the two largest values that the producer reads: a bias is smaller. A record of a
    gradient reads the given gradient only; the other factor is the other operand of its call.
    """
    flow = side.flow
    is_chosen = is_product[owners]
    factors, nodes = terms[is_chosen], owners[is_chosen]
    records = np.flatnonzero(is_product & _flag_records(side)[side.producers])
    gradients = side.classes[records].tolist()
    other_factors = np.array([_find_other_operand(flow, x) for x in gradients], dtype=np.int64)
    factors, nodes = np.append(factors, other_factors), np.append(nodes, records)
    is_known = np.isfinite(side.rms[factors]) & (factors >= 0)
    factors, nodes = factors[is_known], nodes[is_known]
    order = np.argsort(-flow.sizes[factors], kind="stable")
    factors_of = IntLists.from_pairs(len(is_product), nodes[order], factors[order])
    products = np.flatnonzero(factors_of.counts > 1)
    places = factors_of.starts[products]
    return products, factors_of.values[places], factors_of.values[places + 1]


def _find_other_operand(flow: Flow, gradient: int) -> int:
    """Return what a call multiplied the value by whose gradient its backward record gives, or -1.

    A value has the size of its gradient.
    """
    call = int(flow.calls[flow.producers[gradient]])
    operands = sorted(flow.operands[call], key=flow.sizes.__getitem__)[-2:] if call >= 0 else []
    if len(operands) < 2:
        return operands[0] if operands else -1
    return operands[0] if flow.sizes[operands[1]] == flow.sizes[gradient] else operands[1]


def _flag_vector_gradients(side: GraphSide) -> Flags:
    """Return (nodes,) whether a backward record gives a value with one axis."""
    shapes = side.flow.shapes
    flags = _flag_records(side)[side.producers]
    nodes = np.flatnonzero(flags)
    shapes_of_nodes = [shapes[value] for value in side.classes[nodes].tolist()]
    flags[nodes] = [shape is not None and len(shape) == 1 for shape in shapes_of_nodes]
    return flags


def _flag_records(side: GraphSide) -> Flags:
    """Return (ops + 1,) whether each op is the backward record of a call; the last one is False."""
    return np.append(side.flow.trace.ops["forward"].to_numpy() >= 0, False)


def _flag_broadcast_gradients(side: GraphSide) -> Flags:
    """Return (nodes,) whether a record gives a value that is several times smaller than it reads.

    What it reads first is the gradient of the result.
    """
    flow = side.flow
    flags = _flag_records(side)[side.producers]
    nodes = np.flatnonzero(flags)
    reads = flow.reads.take(side.producers[nodes])
    has_gradient = reads.counts > 0
    nodes, starts = nodes[has_gradient], reads.starts[:-1][has_gradient]
    flags[:] = False
    given_sizes = flow.sizes[reads.values[starts]]
    n_terms = given_sizes // np.maximum(1, flow.sizes[side.classes[nodes]])
    flags[nodes] = n_terms >= _MIN_BROADCAST_TERMS
    return flags


def _add_addends(side: GraphSide, value: int, reduction: int) -> float:
    """Return what the ranks of a reduction add up, judged by what this one gives, else NaN."""
    flow = side.flow
    given = [flow.rms[read] for read in flow.reads[reduction] if read != value]
    return side.group_sizes.get(reduction, _MIN_RANKS) * max(given, default=math.nan)


def _add_broadcast_terms(side: GraphSide, value: int, record: int) -> float:
    """Return what the terms of the gradient of a broadcast operand add up to, NaN if it is none.

    It is the sum of the given gradient times the other factor of a product, or over the divisor of
    a quotient; of a divisor d itself, of that gradient times the dividend over d^2.
    """
    flow, call = side.flow, side.flow.calls[record]
    if call < 0 or not flow.reads[record]:
        return math.nan
    given_gradient = flow.reads[record][0]
    sizes: Sequence[int] = flow.list_column("size")
    n_terms = sizes[given_gradient] // max(1, sizes[value])
    operands = list(flow.operands[call])
    others = [operand for operand in operands if sizes[operand] > sizes[value]]
    if n_terms < _MIN_BROADCAST_TERMS or len(others) != 1:
        return math.nan
    total: float = n_terms * flow.rms[given_gradient]
    if side.kinds[call] != _QUOTIENT:
        return total * flow.rms[others[0]]
    divisor = flow.rms[operands[-1]]
    if not divisor > 0:
        return math.nan
    is_of_divisor = others[0] == operands[0]
    return total * flow.rms[others[0]] / divisor**2 if is_of_divisor else total / divisor


def build_visibility_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): how much of a node's relative error the child shows.

    It is a lower bound. A single number computed from n terms with errors of random sign shows one
    part in sqrt(n) of their relative error on average (Higham and Mary, SIAM J. Sci. Comput. 41,
    2019, theorem 2.4), and often less: the errors cancel by chance, see _SHOWN_SHARE. An addition
    shows the node's share of the result. Sums of rows that are used with the rows again, as in a
    norm, are taken to show everything: a judgment call.
    """
    sizes = _pack(np.fmax(1.0, _average_class_column(graph, lambda flow: flow.sizes)))
    compute_share = build_share_function(graph)

    def compute_visibility(node: int, child: int) -> float:
        reduction = 1.0
        if sizes[child] == 1 < sizes[node]:
            reduction = _SHOWN_SHARE / math.sqrt(sizes[node])
        return compute_share(node, child) * reduction

    return compute_visibility


def build_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): the node's share of a child that is a sum, at most 1.

    The share is a ratio of root mean squares; 1 where the child is no sum. The relative error of a
    sum is that of its terms times their shares: a new weight differs by little of what a step
    differs by. The gradient of a term is no sum of terms, although its record names the operator.
    """
    rms = _pack(_average_class_column(graph, lambda flow: np.array(flow.rms, dtype=float)))
    is_sum_node = np.zeros(graph.n_nodes, dtype=bool)
    for side in graph.sides:
        is_sum_op = np.append(side.op_kinds.flag(_SUM_KINDS.__contains__), False)
        is_sum_op &= ~_flag_records(side)
        is_sum_node |= is_sum_op[side.producers]
    is_sum = is_sum_node.tolist()

    def compute_share(node: int, child: int) -> float:
        has_share = is_sum[child] and rms[child] > 0
        if not has_share:
            return 1.0
        share: float = rms[node] / rms[child]
        if not math.isfinite(share):
            return 1.0
        return min(1.0, share)

    return compute_share


def build_carried_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): how much larger the child's relative error may be.

    In a sum it is the node's share. A part of a tensor may have all of its error: the errors of
    elements are those of the whole, which are divided by the norm of the part. Nothing else is
    enlarged here. The error of a value with masking constants is relative to its other elements,
    whose norm no record has: they are taken to be as large as those of the part.
    """
    compute_share = build_share_function(graph)
    norms = _pack(_average_class_column(graph, lambda flow: np.asarray(flow.norms, dtype=float)))
    sizes = _pack(_average_class_column(graph, lambda flow: flow.sizes))
    lowest = _average_class_column(graph, lambda flow: flow.classes["min"].to_numpy(dtype=float))
    is_masked = (lowest < -MASK_MAGNITUDE).tolist()

    def compute_carried_share(node: int, child: int) -> float:
        share = compute_share(node, child)
        if share < 1 or not 1 < sizes[child] < sizes[node] or not 0 < norms[child] < norms[node]:
            return share
        is_part = all(
            _is_part(side, int(side.classes[node]), int(side.classes[child]))
            for side in graph.sides
            if side.classes[child] >= 0 and side.classes[node] >= 0
        )
        if is_part and is_masked[node] and not is_masked[child]:
            return math.sqrt(sizes[node] / sizes[child])
        return norms[node] / norms[child] if is_part else share

    return compute_carried_share


def _pack(column: Floats) -> array[float]:
    """Return numbers that are read one by one: as fast as those of a list, in a quarter of it."""
    return array("d", column.tobytes())


def _is_part(side: GraphSide, value: int, child: int) -> bool:
    """Return whether a smaller value may be a part of another one.

    An op takes elements out of that one, or no op is recorded, and the extremes are within its own.
    """
    flow, producer = side.flow, int(side.flow.producers[child])
    if producer >= 0 and side.kinds[producer] not in _PART_KINDS:
        return False
    highs, lows = flow.list_column("max"), flow.list_column("min")
    return bool(highs[child] <= highs[value] and lows[child] >= lows[value])


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
