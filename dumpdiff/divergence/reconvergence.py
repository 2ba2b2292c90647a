"""Differences that need no cause: values of another decomposition, which agree again after it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import product

import numpy as np

from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING, RECONVERGED
from .ancestries import UNKNOWN
from .compared_ends import mark_compared_at_ends
from .error_shares import build_visibility_function
from .forward_walk import DIVERGED
from .joint_graph import JointGraph
from .unread_gradients import find_gradients_of_inputs, find_unread_gradients


def find_reconverged(
    graph: JointGraph,
    initial_state: list[str],
    is_final: list[bool],
    errors: list[float],
    noticed_errors: list[float],
    exceeds_tolerance: list[bool],
) -> list[str]:
    """Return the states with reconverged nodes marked.

    A node reconverges if it does not agree, and everything that is computed from it agrees or
    reconverges. For a compared value its error must also be large enough to be noticed: carried to
    some agreeing value below, it must exceed the error that this one has or may have
    (``noticed_errors``). A loss of one number shows little of an error. Neither does a residual
    sum, if the branch is small, in particular in a coarse dtype. A value that may follow from it by
    the order of execution only shows nothing if others follow by the record: the target of a loss,
    which a batch gave, would agree whatever was predicted.

    What a value is computed back into counts as computed from it, as in x + (q - x) = q, where the
    difference leads to a value that was there before.

    The last value of a path, such as a loss, never reconverges, and neither does what is
    ``is_final``. Of a value of the forward pass, only the forward pass counts: gradients that read
    it may differ for another reason. In a coarse dtype, where different values look equal, they
    count as well. A value that agrees only because its inputs have
    errors (``exceeds_tolerance``) counts as agreement only if everything that is computed from it
    agrees too.

    A value without a partner is compared at its ends, too, if some agreeing tensor is computed from
    it and nothing that was compared of what is computed from it differs: a wrong value would show
    there. What else is computed from it may be without a partner, as the steps of a recurrent cell
    or a branch of the gradients. A single number is no such end. The same holds for a value that
    differs from its partner only in the order of its numbers, as images and their patches.
    """
    state = list(initial_state)
    is_precise = graph.is_precise
    compute_visibility = build_visibility_function(graph)
    returned_nodes = _find_returned_nodes(graph)
    removing_results = _find_removing_results(graph, state, returned_nodes)
    has_differences = any(name in DIVERGED for name in state)
    unused_nodes = find_gradients_of_inputs(graph) if has_differences else set()
    # what these ops give back was there before, so it comes earlier in the order
    returned_ends = {end for results in removing_results.values() for end in results}
    # error of each node from which on some agreeing value below would have noticed it
    noticeable_errors = [math.inf] * graph.n_nodes
    agrees = np.array(state, dtype=object) == AGREEING
    agrees[: len(exceeds_tolerance)] &= ~np.array(exceeds_tolerance, dtype=bool)
    agrees[len(exceeds_tolerance) :] = False
    unread_sums = find_unread_gradients(graph, state, unused_nodes, ~agrees)
    leads_to_agreement: list[bool] = agrees.tolist()
    ranks = graph.ranks
    for node in reversed(graph.sort_nodes(~agrees)):
        has_other_ends = node in unread_sums or node in removing_results
        if state[node] in DIVERGED and not has_other_ends:
            children = graph.children[node]
            if not any(leads_to_agreement[end] or end in returned_nodes for end in children):
                continue
        if _leads_nowhere(graph, node, state, unused_nodes):
            unused_nodes.add(node)
        sums = unread_sums.get(node, {})
        ends = _list_ends(graph, node, state, returned_nodes, unused_nodes)
        if is_precise and graph.phase[node] == FORWARD and state[node] != AGREEING:
            ends = _select_forward_ends(graph, state, ends)
        ends = [end for end in ends if not _is_wrong_guess(graph, state, node, end)]
        later_ends = [end for end in ends if ranks[end] > ranks[node] or end in returned_ends]
        ends = later_ends or ends  # what came before is a partner by mistake
        ends = ends or removing_results.get(node, []) or list(sums)
        agreeing_ends = [
            end
            for end in ends
            if leads_to_agreement[end]
            and (ranks[end] > ranks[node] or end in returned_ends or end in sums)
        ]
        recorded_ends = [end for end in agreeing_ends if end not in graph.guessed_nodes]
        for end in recorded_ends or agreeing_ends:
            visibility = compute_visibility(node, end) * sums.get(end, 1.0)
            if visibility > 0:
                limit = noticed_errors[end] if state[end] == AGREEING else noticeable_errors[end]
                noticeable_errors[node] = min(noticeable_errors[node], limit / visibility)
        all_agree_below = len(agreeing_ends) == len(ends)
        if state[node] == AGREEING:
            leads_to_agreement[node] = all_agree_below
            continue
        if not ends or not all_agree_below or is_final[node]:
            continue
        if state[node] in UNKNOWN or not errors[node] <= noticeable_errors[node]:
            state[node] = RECONVERGED
            leads_to_agreement[node] = True
    mark_compared_at_ends(graph, state, leads_to_agreement, returned_nodes, unread_sums)
    return state


def _list_ends(
    graph: JointGraph,
    node: int,
    state: Sequence[str],
    returned_nodes: Mapping[int, set[int]],
    unused_nodes: Collection[int],
) -> list[int]:
    """Return what is computed from a node and has consequences.

    A child without a partner has none if it leads back to the node only, as a copy does that has
    its numbers. One from which nothing new is computed has none if it has no partner and is unused,
    or if ops compute from it what was there before: of x / 2, where(x == y, x / 2, x) shows that
    nothing comes of it. Then x is the end, in place of x / 2.
    """
    ends: dict[int, None] = {}
    for child in graph.children[node]:
        only_leads_back = set(graph.children[child]) == {node}
        if state[child] in UNKNOWN and (child in unused_nodes or only_leads_back):
            continue
        if state[child] not in UNKNOWN or graph.children[child]:
            ends[child] = None
        elif child in returned_nodes:
            ends.update(dict.fromkeys(sorted(returned_nodes[child] - {node})))
        else:
            ends[child] = None
    return list(ends)


def _is_wrong_guess(graph: JointGraph, state: Sequence[str], node: int, end: int) -> bool:
    """Return whether only the order of execution says that an agreeing end follows from a node.

    It was there before the node, as its rank says. So a constant of zeros that no recorded op made
    is taken for the result of the op before it.
    """
    is_guess = end in graph.guessed_nodes and state[end] == AGREEING
    return is_guess and bool(graph.ranks[end] <= graph.ranks[node])


def _leads_nowhere(
    graph: JointGraph, node: int, state: Sequence[str], unused_nodes: Collection[int]
) -> bool:
    """Return whether nothing follows from a gradient but gradients that no parameter needs."""
    if state[node] not in UNKNOWN or graph.phase[node] != BACKWARD:
        return False
    children = graph.children[node]
    return bool(children) and all(child in unused_nodes for child in children)


def _select_forward_ends(graph: JointGraph, state: Sequence[str], ends: list[int]) -> list[int]:
    """Return the ends of a forward value that tell whether it is right; all, if none is known.

    Gradients read it, too, and may differ for another reason. What reads a value without a partner,
    of which only one side has one here, was not recorded: the other ends tell more.
    """
    forward_ends = [end for end in ends if graph.phase[end] == FORWARD]
    unknown_ends = [end for end in forward_ends if state[end] in UNKNOWN]
    lost_ends = [end for end in unknown_ends if not graph.children[end]]
    if len({bool(graph.target_classes[end] >= 0) for end in lost_ends}) == 1:
        forward_ends = [end for end in forward_ends if end not in lost_ends] or forward_ends
    return forward_ends or ends


def _find_returned_nodes(graph: JointGraph) -> dict[int, set[int]]:
    """Return node -> the values that ops compute from it and that another op computed before.

    MindSpore's Assign returns what it stores, which equal numbers alone do not show of one number.
    """
    alignment = graph.comparison.alignment
    returned_nodes: defaultdict[int, set[int]] = defaultdict(set)
    for flow, nodes in (
        (alignment.target, graph.target_nodes),
        (alignment.reference, graph.reference_nodes),
    ):
        ops = flow.tensors["op"].to_numpy()
        rows = np.flatnonzero(flow.is_computed & (flow.tensor_class >= 0))
        classes = flow.tensor_class[rows]
        is_returned = flow.producers[classes] != ops[rows]
        returned_rows = zip(
            ops[rows[is_returned]].tolist(), classes[is_returned].tolist(), strict=True
        )
        for op, value in returned_rows:
            for source in flow.reads[op]:
                if source != value:
                    returned_nodes[int(nodes[source])].add(int(nodes[value]))
        for op in np.flatnonzero(flow.trace.ops["kind"].to_numpy() == "Assign").tolist():
            for stored, value in product(flow.reads[op], flow.writes[op]):
                if flow.sizes[value] == 1 and flow.norms[stored] == flow.norms[value]:
                    returned_nodes[int(nodes[value])].add(int(nodes[stored]))
    return returned_nodes


def _find_removing_results(
    graph: JointGraph,
    state: list[str],
    returned_nodes: Mapping[int, set[int]],
) -> dict[int, list[int]]:
    """Return node -> the values of its size that ops compute from it and that were there before.

    Only nodes that differ and that nothing else is computed from have any.
    """
    if not any(name in DIVERGED for name in state):
        return {}
    sizes = graph.sizes.tolist()
    results: dict[int, list[int]] = {}
    for node, returned in returned_nodes.items():
        if state[node] not in DIVERGED or graph.children[node]:
            continue
        results[node] = sorted(end for end in returned if sizes[end] == sizes[node])
    return results
