"""Sums whose terms cancel: their rounding errors are relative to the terms, not to what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.int_lists import IntLists
from ..model.trace import BACKWARD
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
SUM_KINDS = frozenset({"add", "sub"})
#: Kinds that keep relative errors where all inputs but one are single numbers.
SCALING_KINDS = frozenset({"mul", "div"})
_SOFTMAX = "softmax"
#: Losses whose gradient is the exponential of sums of log-probabilities, one for each step of their
#: first input (steps, ...).
_PATH_LOSSES = frozenset({"ctc_loss"})
#: Takes the place of a root mean square of 0 in a division.
_TINY = 1e-300


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
    sizes = average_class_column(graph, lambda flow: flow.sizes)
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
    is_repeating = is_sum | _flag_kinds(side, SUM_KINDS)[producers]
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
    is_addition = _flag_kinds(side, SUM_KINDS)[side.producers] & ~is_sum
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
    records = np.flatnonzero(is_product & flag_records(side)[side.producers])
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
    flags = flag_records(side)[side.producers]
    nodes = np.flatnonzero(flags)
    shapes_of_nodes = [shapes[value] for value in side.classes[nodes].tolist()]
    flags[nodes] = [shape is not None and len(shape) == 1 for shape in shapes_of_nodes]
    return flags


def flag_records(side: GraphSide) -> Flags:
    """Return (ops + 1,) whether each op is the backward record of a call; the last one is False."""
    return np.append(side.flow.trace.ops["forward"].to_numpy() >= 0, False)


def _flag_broadcast_gradients(side: GraphSide) -> Flags:
    """Return (nodes,) whether a record gives a value that is several times smaller than it reads.

    What it reads first is the gradient of the result.
    """
    flow = side.flow
    flags = flag_records(side)[side.producers]
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


def average_class_column(graph: JointGraph, read_column: Callable[[Flow], AnyArray]) -> Floats:
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
