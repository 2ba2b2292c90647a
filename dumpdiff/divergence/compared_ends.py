"""Values without comparison that are compared where agreeing tensors are computed from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Flow
from ..graph.gradients import MATRIX_PRODUCT_KINDS, PRODUCT_KINDS
from ..model.arrays import Floats, Ints
from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING, INTRODUCED, RECONVERGED
from .ancestries import UNKNOWN
from .forward_walk import flag_diverged
from .joint_graph import JointGraph
from .rearrangements import flag_different_tensors, is_rearranged


def mark_compared_at_ends(
    graph: JointGraph,
    state: list[str],
    leads_to_agreement: Sequence[bool],
    returned_nodes: Mapping[int, set[int]],
    unread_sums: Mapping[int, Mapping[int, float]],
) -> None:
    """Mark values without comparison as reconverged where an agreeing tensor depends on them.

    Of a value that differs in the order of its numbers, the order is what was not compared.
    The gradient of a weight is computed from what the weight multiplies, also where the record of
    the call does not show that. So it is an end of that value.

    The second pass follows ops that give back values which were there before them: the slices of
    what was stacked, or a sum with a term of zeros. The value that such an op reads has no other
    trace than those.
    """
    sizes = graph.sizes
    names = np.array(state, dtype=object)
    agrees, differs = names == AGREEING, flag_diverged(names)
    is_covered = (agrees & leads_to_agreement & (sizes > 1)).tolist()
    touches_difference = differs.tolist()
    for node in _find_uncompared_gradients(graph, state, sizes.tolist()):
        touches_difference[node] = True
    is_compared = agrees | differs
    rearranged_nodes = _find_rearranged_nodes(graph, state, is_covered)
    for node in rearranged_nodes:
        touches_difference[node] = is_compared[node] = False
    open_nodes = graph.sort_nodes(~is_compared)[::-1]
    gradient_ends = _find_gradients_of_weights(graph, open_nodes)
    for is_second_pass in (False, True):
        for node in open_nodes:
            ends: Sequence[int] = [
                *graph.children[node],
                *gradient_ends.get(node, ()),
                *unread_sums.get(node, ()),
            ]
            if is_second_pass and node in returned_nodes:
                ends = [*ends, *returned_nodes[node]]
            touches_difference[node] |= any(touches_difference[end] for end in ends)
            if touches_difference[node] or not any(is_covered[end] for end in ends):
                continue
            is_covered[node] = True
            if state[node] in UNKNOWN or node in rearranged_nodes:
                state[node] = RECONVERGED


def _find_gradients_of_weights(
    graph: JointGraph, nodes: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    """Return node -> the gradients of the parameters by which forward ops multiply its value.

    The bias that a product adds is none of them: its gradient follows without the value.
    """
    ends: defaultdict[int, list[int]] = defaultdict(list)
    gradients_of_sides = graph.comparison.alignment.gradients or ()
    for side, gradients in zip(graph.sides, gradients_of_sides, strict=False):
        flow, parameters = side.flow, side.flow.list_column("parameter")
        for node in nodes:
            value = int(side.classes[node])
            if value < 0 or graph.phase[node] != FORWARD:
                continue
            for op in flow.users[value]:
                if side.kinds[op] not in PRODUCT_KINDS or flow.phases[op] != FORWARD:
                    continue
                n_axes = 2 if side.kinds[op] in MATRIX_PRODUCT_KINDS else 0
                ends[node] += [
                    int(side.nodes[gradients.by_value[factor]])
                    for factor in flow.operands[op]
                    if parameters[factor] and len(flow.shapes[factor] or ()) >= n_axes
                    if factor in gradients.by_value
                ]
    return ends


def _find_rearranged_nodes(
    graph: JointGraph,
    state: list[str],
    is_covered: Sequence[bool],
) -> set[int]:
    """Return the nodes of the same numbers in another order from which an agreeing one follows."""
    return {
        node
        for node in np.flatnonzero(flag_different_tensors(graph)).tolist()
        if state[node] == INTRODUCED
        and any(is_covered[end] for end in graph.children[node])
        and is_rearranged(graph, node)
    }


def _find_uncompared_gradients(
    graph: JointGraph, state: list[str], sizes: Sequence[int]
) -> set[int]:
    """Return the nodes that may be the gradient of a parameter that found no partner.

    These are the gradients that a record names, and of the other side the results of that size that
    nothing is computed from. They are ends that should have been compared. A gradient with the
    numbers of another one that agrees was compared: the two biases of a recurrent layer have one
    gradient, and the other side may have one bias.
    """
    alignment = graph.comparison.alignment
    n_pairs = len(graph.comparison.pairs)
    uncompared_nodes: set[int] = set()
    for flow, classes, other_classes in (
        (alignment.target, graph.target_classes, graph.reference_classes),
        (alignment.reference, graph.reference_classes, graph.target_classes),
    ):
        names = flow.list_column("gradient_of")
        named_nodes = [
            node
            for node in range(n_pairs, graph.n_nodes)
            if classes[node] >= 0 and names[classes[node]]
        ]
        agreeing_nodes = [
            node
            for node in (range(n_pairs) if named_nodes else ())
            if names[classes[node]] and state[node] == AGREEING
        ]
        agreeing_numbers = _read_numbers(flow, classes[agreeing_nodes])
        is_known = [
            bool(np.isclose(agreeing_numbers, numbers, alignment.tolerance, 0).all(axis=1).any())
            for numbers in _read_numbers(flow, classes[named_nodes])
        ]
        named_nodes = [node for node, known in zip(named_nodes, is_known, strict=True) if not known]
        missing_sizes = {sizes[node] for node in named_nodes}
        uncompared_nodes.update(named_nodes)
        for node in range(n_pairs, graph.n_nodes):
            is_result = other_classes[node] >= 0 and not graph.children[node]
            if is_result and graph.phase[node] == BACKWARD and sizes[node] in missing_sizes:
                uncompared_nodes.add(node)
    return {node for node in uncompared_nodes if state[node] in UNKNOWN}


def _read_numbers(flow: Flow, values: Ints) -> Floats:
    """Return (values, 4) their sizes, extremes and norms."""
    return flow.classes[["size", "max", "min", "norm"]].to_numpy(dtype=float)[values]
