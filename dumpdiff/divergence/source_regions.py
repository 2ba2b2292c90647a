"""The values without a partner that a divergence can come from, of all that lie before it.

One op of one side may be hundreds of the other: the layers and steps of a recurrent cell. What the
one op returns often holds results of the many as its parts: the states of all steps, the last state
of each layer. Where such a part agrees, the divergence lies behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph import Flow
from ..model.arrays import Floats
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import BACKWARD
from ..model.verdict import AGREEING, INCOMPARABLE
from .ancestries import MAX_REGION_END, select_region_ends
from .joint_graph import GraphSide, JointGraph
from .states import States

#: Nodes of a region that are searched; a longer search takes as long as a comparison.
_MAX_REGION_NODES = 4096
#: Results whose parts are searched for, and parts of one of them.
_MAX_WHOLES = 8
_MAX_PARTS = 512
#: Relative difference of the norms up to which a value may be a part; then elements are compared.
_NORM_TOLERANCE = 1e-3


def find_source_nodes(graph: JointGraph, states: States, node: int) -> tuple[int, ...]:
    """Return the nodes without comparison that the divergence at a node can come from.

    In dataflow order, the first and the last of each side. Of a region that is longer, what an
    agreeing part of the other side's results is computed from is left out. That needs whole
    tensors. The forward pass is no source of a divergence in the backward pass: it would be one
    itself.
    """
    nodes = states.ancestry[node].unpaired_nodes
    if len(nodes) <= MAX_REGION_END:
        return _drop_forward_nodes(graph, node, nodes)
    region: Sequence[int] = _drop_forward_nodes(graph, node, _collect_region(graph, states, node))
    covered_nodes: set[int] = set()
    tolerance = float(graph.comparison.pairs["tolerance"].iat[node])
    for own, other in (graph.sides, graph.sides[::-1]):
        own_nodes = [n for n in region if own.classes[n] >= 0]
        if len(own_nodes) > MAX_REGION_END:
            other_values = [int(other.classes[n]) for n in (*region, node) if other.classes[n] >= 0]
            wholes = _list_results(other.flow, other_values)
            parts = set(_iterate_agreeing_parts(own, own_nodes, other.flow, wholes, tolerance))
            covered_nodes |= _find_ancestors(graph, parts, set(own_nodes))
    if not covered_nodes.issuperset(region):
        region = [n for n in region if n not in covered_nodes]
    return _select_nodes(graph, region)


def _select_nodes(graph: JointGraph, region: Sequence[int]) -> tuple[int, ...]:
    """Return of each side the nodes that a finding can name: one of each role, and the ends."""
    selected_nodes = set(select_region_ends(graph, region))
    for side in graph.sides:
        nodes_of_op: dict[int, int] = {}
        for node in region:
            value = side.classes[node]
            producer = int(side.flow.producers[value]) if value >= 0 else -1
            if producer >= 0:
                nodes_of_op.setdefault(producer, node)
        ops = sorted(nodes_of_op)
        roles = select_roles(side.flow, ops, [side.kinds[op] for op in ops], MAX_REGION_END)
        selected_nodes.update(nodes_of_op[op] for op in roles)
    return tuple(node for node in region if node in selected_nodes)


def select_roles(
    flow: Flow, ops: Sequence[int], kinds: Sequence[str], max_ops: int
) -> tuple[int, ...]:
    """Return at most so many of some ops, in order: the first of each role, then the ends.

    A role is the kind of an op, those of the ops that its operands come from, and the dtype of its
    result: the masks of steps are cut out as the steps are. ``ops`` are in order of execution, with
    their kinds.
    """
    if len(ops) <= max_ops:
        return tuple(ops)
    kind_of = dict(zip(ops, kinds, strict=True))
    dtypes = flow.list_column("dtype")
    first_of_role: dict[tuple[str, ...], int] = {}
    for op in ops:
        producers = [int(flow.producers[value]) for value in flow.operands[op]]
        operand_kinds = sorted(kind_of.get(producer, "") for producer in producers)
        result_dtypes = [str(dtypes[value]) for value in flow.writes[op][:1]]
        first_of_role.setdefault((kind_of[op], *result_dtypes, *operand_kinds), op)
    selected_ops = {ops[-1], *list(first_of_role.values())[: max_ops - 1]}
    ends = [end for pair in zip(ops, reversed(ops), strict=True) for end in pair]
    for op in ends:
        if len(selected_ops) == max_ops:
            break
        selected_ops.add(op)
    return tuple(sorted(selected_ops))


def _drop_forward_nodes(graph: JointGraph, node: int, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of the backward pass, if the divergence is there and it has any."""
    if graph.phase[node] != BACKWARD:
        return tuple(nodes)
    return tuple(n for n in nodes if graph.phase[n] == BACKWARD)


def _collect_region(graph: JointGraph, states: States, node: int) -> list[int]:
    """Return all nodes without comparison between a node and what it is compared with before it.

    What only the order of execution names is left out where a result of it agrees.
    """
    n_pairs = len(graph.comparison.pairs)
    region: set[int] = set()
    todo = [node]
    while todo and len(region) < _MAX_REGION_NODES:
        child = todo.pop()
        for parent in graph.parents[child]:
            is_compared = parent < n_pairs and states.state[parent] != INCOMPARABLE
            is_compared |= child in graph.guessed_nodes and _has_agreeing_result(
                graph, states, parent
            )
            if not is_compared and parent not in region:
                region.add(parent)
                todo.append(parent)
    return [n for n in graph.order.tolist() if n in region]


def _has_agreeing_result(graph: JointGraph, states: States, node: int) -> bool:
    """Return whether a value agrees that was computed from a node by the record."""
    return any(
        states.state[child] == AGREEING and child not in graph.guessed_nodes
        for child in graph.children[node]
    )


def _find_ancestors(graph: JointGraph, nodes: set[int], region: set[int]) -> set[int]:
    """Return some nodes and all of a region that they are computed from."""
    ancestors = set(nodes)
    todo = list(nodes)
    while todo:
        for parent in graph.parents[todo.pop()]:
            if parent in region and parent not in ancestors:
                ancestors.add(parent)
                todo.append(parent)
    return ancestors


def _iterate_agreeing_parts(
    own: GraphSide,
    own_nodes: Sequence[int],
    other_flow: Flow,
    wholes: Sequence[int],
    tolerance: float,
) -> Iterator[int]:
    """Yield the nodes of one side whose value is a slice of one of the other side's values."""
    values = own.classes[np.array(own_nodes)]
    sizes, norms = own.flow.sizes[values], own.flow.norms[values]
    for whole in wholes:
        for slices in _iterate_slices(other_flow, whole):
            slice_norms = np.linalg.norm(slices, axis=1)
            for index in np.flatnonzero(sizes == slices.shape[1]).tolist():
                is_near = np.abs(slice_norms - norms[index]) <= _NORM_TOLERANCE * norms[index]
                if norms[index] > 0 and is_near.any():
                    distance = _compute_distance(own.flow, int(values[index]), slices[is_near])
                    if distance <= tolerance:
                        yield own_nodes[index]


def _list_results(flow: Flow, values: Sequence[int]) -> list[int]:
    """Return all results of the last ops that produced some values."""
    producers = dict.fromkeys(int(flow.producers[value]) for value in values)
    results = [value for op in producers if op >= 0 for value in flow.writes[op]]
    return results[-_MAX_WHOLES:]


def _iterate_slices(flow: Flow, value: int) -> Iterator[Floats]:
    """Yield the slices of a value along each of its axes, as the rows of a matrix."""
    tensor = load_readable_tensor(flow.trace, int(flow.list_column("tensor")[value]))
    if tensor is None or not np.issubdtype(tensor.dtype, np.floating):
        return
    for axis, length in enumerate(tensor.shape):
        if 1 < length <= _MAX_PARTS and length < tensor.size:
            yield np.moveaxis(tensor, axis, 0).reshape(length, -1).astype(np.float64)


def _compute_distance(flow: Flow, value: int, slices: Floats) -> float:
    """Return the relative L2 distance of a value to the nearest of some slices, inf if unknown."""
    tensor = load_readable_tensor(flow.trace, int(flow.list_column("tensor")[value]))
    if tensor is None:
        return np.inf
    elements = tensor.reshape(-1).astype(np.float64)
    distances = np.linalg.norm(slices - elements, axis=1)
    return float(distances.min() / np.linalg.norm(elements))
