"""Both dataflow graphs as one: a node is a pair of value classes, or a class without a partner.

An edge that one recorder misses is taken from the other side. An edge that both miss is bridged by
evidence, see ``graph.missing_edges``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import repeat

import numpy as np
import pandas as pd

from ..graph import Flow
from ..graph.dataflow import Bridge
from ..graph.joins import find_joined_parts
from ..graph.missing_edges import (
    find_bridges,
    find_gradient_sums,
    find_possible_parts,
    find_unrecorded_results,
)
from ..graph.recent_values import find_repeated_sources
from ..model.arrays import Flags, Floats, Ints, Objects
from ..model.int_lists import IntLists
from ..model.trace import FORWARD
from .fused_groups import FusedGroup, find_outputs
from .sides import PreparedSide
from .slot_pairs import SlotPair


@dataclass(frozen=True)
class Edges:
    """Edges of a dataflow between nodes; the parents of one node are in order."""

    children: Ints
    parents: Ints

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[int, int]]) -> Edges:
        """Return the edges of pairs (child, parent)."""
        table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        return Edges(table[:, 0], table[:, 1])

    def append(self, *others: Edges) -> Edges:
        """Return these edges and others after them."""
        all_edges = (self, *others)
        return Edges(
            np.concatenate([edges.children for edges in all_edges]),
            np.concatenate([edges.parents for edges in all_edges]),
        )

    def flag_children(self, n_nodes: int) -> Flags:
        """Return (nodes,) whether a node has parents."""
        flags = np.zeros(n_nodes, dtype=bool)
        flags[self.children] = True
        return flags


@dataclass(frozen=True)
class JoinedSide:
    """One side of a joint dataflow."""

    flow: Flow
    nodes: Ints  #: (classes,) node of each class
    classes: Ints  #: (nodes,) class of each node, -1 if the side has none
    edges: Edges  #: from nodes to what was computed from them, as recorded or bridged


@dataclass(frozen=True)
class JointDataflow:
    """The joined dataflow of an alignment.

    Its nodes are the pairs of classes, the slot pairs and the groups, in this order, then the
    unpaired classes of the target, then those of the reference.
    """

    sides: tuple[JoinedSide, JoinedSide]
    parents: IntLists  #: per node: nodes it was computed from, by either record
    order: Ints  #: nodes, parents first
    phase: Objects  #: (nodes,) of the target's class, else of the reference's
    bridges: Counter[str]  #: evidence -> number of missing edges bridged by it
    joined_nodes: frozenset[int]  #: whose parts were recorded, but not the op that joined them
    guessed_nodes: frozenset[int]  #: whose parents only the order of execution names

    def add_differences(self, agrees: Flags) -> JointDataflow:
        """Return the dataflow with edges between pairs that differ; ``agrees`` is (pairs,)."""
        if agrees.all():
            return self
        parents, order = _order_nodes(self.sides, self.phase, agrees)
        return replace(self, parents=parents, order=order)


def join_dataflows(
    sides: tuple[PreparedSide, PreparedSide],
    class_pairs: pd.DataFrame,
    slot_pairs: Sequence[SlotPair],
    groups: Sequence[FusedGroup],
) -> JointDataflow:
    """Join the dataflow of two sides along what is paired, as if all pairs agreed.

    ``class_pairs`` has the columns target and reference.
    """
    target, reference = sides[0].flow, sides[1].flow
    first_group = len(class_pairs) + len(slot_pairs)
    part_nodes_t: dict[int, int] = {}
    part_nodes_r: dict[int, int] = {}
    for node, group in enumerate(groups, start=first_group):
        part_nodes_t.update(dict.fromkeys(group.target, node))
        part_nodes_r.update(dict.fromkeys(group.reference, node))
    paired_t = _list_paired(class_pairs["target"].to_numpy(), [
        *(pair.target for pair in slot_pairs),
        *(group.target[0] for group in groups),
    ])  # fmt: skip
    paired_r = _list_paired(class_pairs["reference"].to_numpy(), [
        *(pair.reference for pair in slot_pairs),
        *(group.reference[0] for group in groups),
    ])  # fmt: skip
    n_pairs = len(paired_t)
    is_slot_pair = np.zeros(n_pairs, dtype=bool)
    is_slot_pair[len(class_pairs) : first_group] = True
    nodes_t, unpaired_t = _number_nodes(
        len(target.classes), paired_t, is_slot_pair, part_nodes_t, n_pairs
    )
    nodes_r, unpaired_r = _number_nodes(
        len(reference.classes), paired_r, is_slot_pair, part_nodes_r, n_pairs + len(unpaired_t)
    )
    classes_t = np.concatenate([paired_t, unpaired_t, np.full(len(unpaired_r), -1)])
    classes_r = np.concatenate([paired_r, np.full(len(unpaired_t), -1), unpaired_r])
    n_nodes = len(classes_t)
    nodes_of_sides = (nodes_t, nodes_r)
    fused_edges = _list_fused_edges(sides, groups, nodes_of_sides)
    slot_edges = _list_slot_edges(len(class_pairs), slot_pairs, (target, reference), nodes_of_sides)
    recorded_edges = [
        _map_edges(nodes, side.parents).append(side_edges)
        for nodes, side, side_edges in zip(nodes_of_sides, sides, fused_edges, strict=True)
    ]
    has_parents_t, has_parents_r = (edges.flag_children(n_nodes) for edges in recorded_edges)
    is_given_t = _flag_given(target, classes_t)
    is_given_r = _flag_given(reference, classes_r)
    bridges: Counter[str] = Counter()
    bridges_t = _bridge_missing_edges(
        target, classes_t, nodes_t, has_parents_t, has_parents_r, is_given_r, bridges
    )
    bridges_r = _bridge_missing_edges(
        reference, classes_r, nodes_r, has_parents_r, has_parents_t, is_given_t, bridges
    )
    bridged_nodes = {**bridges_t.evidence, **bridges_r.evidence}
    phases_t, phases_r = target.classes["phase"].to_numpy(), reference.classes["phase"].to_numpy()
    phase = np.where(
        classes_t >= 0, phases_t[np.maximum(classes_t, 0)], phases_r[np.maximum(classes_r, 0)]
    )
    joined_sides = (
        JoinedSide(
            target, nodes_t, classes_t, recorded_edges[0].append(bridges_t.edges, slot_edges)
        ),
        JoinedSide(
            reference, nodes_r, classes_r, recorded_edges[1].append(bridges_r.edges, slot_edges)
        ),
    )
    parents, order = _order_nodes(joined_sides, phase, np.ones(n_pairs, dtype=bool))
    return JointDataflow(
        joined_sides,
        parents,
        order,
        phase,
        bridges,
        frozenset(node for node, evidence in bridged_nodes.items() if evidence == "joined"),
        frozenset(node for node, evidence in bridged_nodes.items() if evidence == "order"),
    )


def _flag_given(flow: Flow, classes: Ints) -> Flags:
    """Return (nodes,) whether one side's record says that its graph is given the value."""
    flags: Flags = (classes >= 0) & flow.is_given[np.maximum(classes, 0)]
    return flags


def _list_paired(classes: Ints, further_classes: list[int]) -> Ints:
    """Return the class of each pair of one side: those of pairs of classes, then the others."""
    return np.append(classes, np.array(further_classes, dtype=classes.dtype))


def _order_nodes(
    sides: tuple[JoinedSide, JoinedSide], phase: Objects, agrees: Flags
) -> tuple[IntLists, Ints]:
    """Return the parents of all nodes by either record, and the nodes with parents first."""
    edges_t, edges_r = (side.edges.append(_bridge_unread_values(side, agrees)) for side in sides)
    edges = edges_t.append(edges_r)
    parents = IntLists.from_pairs(len(phase), edges.children, edges.parents).remove_repeats()
    positions_t, positions_r = (_compute_positions(side.flow, side.classes) for side in sides)
    order = _sort_topologically(parents, positions_t, positions_r)
    return parents, _move_forward_first(order, parents, phase)


def _list_slot_edges(
    first_node: int,
    slot_pairs: Sequence[SlotPair],
    flows: tuple[Flow, Flow],
    nodes_of_sides: tuple[Ints, Ints],
) -> Edges:
    """Return edges from the own nodes of both values to a slot pair of inputs.

    An op reads what another op wrote: the value in its slot should be one of these two. What one of
    the two ops gives is none: the gradient of a - b is that of a, and of b - a the negative one.
    """
    nodes_t, nodes_r = nodes_of_sides
    edges: list[tuple[int, int]] = []
    for node, slot_pair in enumerate(slot_pairs, start=first_node):
        if slot_pair.slot_kind != "input":
            continue
        own_nodes = {int(nodes_t[slot_pair.target]), int(nodes_r[slot_pair.reference])}
        own_nodes -= set(nodes_t[list(flows[0].writes[slot_pair.target_op])].tolist())
        own_nodes -= set(nodes_r[list(flows[1].writes[slot_pair.reference_op])].tolist())
        edges += [(node, own_node) for own_node in sorted(own_nodes - {node})]
    return Edges.from_pairs(edges)


def _number_nodes(
    n_classes: int,
    paired: Ints,
    is_slot_pair: Flags,
    part_nodes: dict[int, int],
    first_free: int,
) -> tuple[Ints, Ints]:
    """Return the node of each class, and the unpaired classes, numbered from ``first_free``.

    The parts of a fused tensor have the node of their group. A class in slot pairs only has the
    node of the first of them.
    """
    nodes = np.full(n_classes, -1)
    pair_nodes = np.arange(len(paired))
    slot_nodes = pair_nodes[is_slot_pair][::-1]
    nodes[paired[slot_nodes]] = slot_nodes
    nodes[paired[~is_slot_pair]] = pair_nodes[~is_slot_pair]
    nodes[list(part_nodes)] = list(part_nodes.values())
    unpaired = np.flatnonzero(nodes < 0)
    nodes[unpaired] = first_free + np.arange(len(unpaired))
    return nodes, unpaired


def _list_fused_edges(
    sides: tuple[PreparedSide, PreparedSide],
    groups: Sequence[FusedGroup],
    nodes_of_sides: tuple[Ints, Ints],
) -> tuple[Edges, Edges]:
    """Return for each side the edges from a fused weight's output to the outputs of its parts.

    The side with the fused weight cuts its output into those parts, but no recorder shows it.
    """
    nodes_t, nodes_r = nodes_of_sides
    edges_t: list[tuple[int, int]] = []
    edges_r: list[tuple[int, int]] = []
    for group in groups:
        output_nodes_t = _collect_output_nodes(sides[0].flow, sides[0].kinds, group.target, nodes_t)
        output_nodes_r = _collect_output_nodes(
            sides[1].flow, sides[1].kinds, group.reference, nodes_r
        )
        fused_nodes, part_nodes, edges = output_nodes_t, output_nodes_r, edges_t
        if len(group.target) > len(group.reference):
            fused_nodes, part_nodes, edges = output_nodes_r, output_nodes_t, edges_r
        if len(fused_nodes) == 1 and fused_nodes.isdisjoint(part_nodes):
            fused_node = fused_nodes.pop()
            edges += [(part_node, fused_node) for part_node in part_nodes]
    return Edges.from_pairs(edges_t), Edges.from_pairs(edges_r)


def _collect_output_nodes(
    flow: Flow, kinds: Sequence[str], leaves: Sequence[int], nodes: Ints
) -> set[int]:
    return {int(nodes[value]) for leaf in leaves for value in find_outputs(flow, kinds, leaf)}


def _map_edges(nodes: Ints, parents: IntLists) -> Edges:
    """Return the edges between nodes, from the parent classes of one side's classes."""
    child_nodes, parent_nodes = nodes[parents.rows], nodes[parents.values]
    is_edge = child_nodes != parent_nodes
    return Edges(child_nodes[is_edge], parent_nodes[is_edge])


@dataclass(frozen=True)
class _Bridges:
    """Edges that replace missing ones."""

    edges: Edges
    evidence: dict[int, str]  #: by node


def _bridge_missing_edges(
    flow: Flow,
    classes: Ints,
    nodes: Ints,
    has_parents: Flags,
    other_has_parents: Flags,
    is_given: Flags,
    bridges: Counter[str],
) -> _Bridges:
    """Return parents for the nodes of one side with a missing producer, and count the evidence.

    Where the record of the other side has the edge, only the parts of a joined tensor are added,
    what a tensor repeats, and what it is a part of together with others: heads may have been
    changed before they were repeated. What the other side's graph is given, see ``is_given``, no op
    before it computed: then the order of execution is no evidence.
    """
    is_leaf = (classes >= 0) & (flow.producers[np.maximum(classes, 0)] < 0) & ~has_parents
    open_leaves = np.flatnonzero(is_leaf)
    values = classes[open_leaves]
    has_edge = other_has_parents[open_leaves]
    bridge_of = find_bridges(flow, values[~has_edge].tolist())
    repeated = find_repeated_sources(flow, values[has_edge].tolist())
    known_sources = {
        **flow.mask_sources,
        **{part: Bridge((whole,), "part") for part, whole in flow.partitions.items()},
        **{value: Bridge((source,), "repeated") for value, source in repeated.items()},
    }
    node_of = nodes.tolist()
    child_nodes: list[int] = []
    parent_nodes: list[int] = []
    evidence_of: dict[int, str] = {}
    columns = (open_leaves.tolist(), values.tolist(), has_edge.tolist())
    for node, value, is_recorded in zip(*columns, strict=True):
        if is_recorded:
            joined_parts = find_joined_parts(flow, value)
            parents = [node_of[part] for part in joined_parts if node_of[part] != node]
            evidence = "joined" if parents else "other side"
            source = known_sources.get(value)
            if not parents and source is not None and node_of[source.parents[0]] != node:
                parents, evidence = [node_of[source.parents[0]]], source.evidence
            bridges[evidence] += 1
            if parents:
                evidence_of[node] = evidence
        else:
            bridge = bridge_of.get(value)
            if bridge is None or (bridge.evidence == "order" and is_given[node]):
                continue
            parents = [node_of[parent] for parent in bridge.parents]
            parents = [parent for parent in parents if parent != node]
            bridges[bridge.evidence] += 1
            evidence_of[node] = bridge.evidence
        child_nodes += repeat(node, len(parents))
        parent_nodes += parents
    edges = Edges(np.array(child_nodes, dtype=np.int64), np.array(parent_nodes, dtype=np.int64))
    return _Bridges(edges, evidence_of)


def _bridge_unread_values(side: JoinedSide, agrees: Flags) -> Edges:
    """Return edges from values that no recorded op reads to those that follow from them.

    ``agrees`` is of the pairs, which are the first nodes. Two pairs are connected only if both
    differ: then one difference follows from the other. That a pair agrees shows nothing about one
    from which it may have been computed.
    """
    flow, nodes, n_pairs = side.flow, side.nodes, len(agrees)
    has_value = side.classes >= 0
    has_value[:n_pairs] &= ~agrees
    values = np.maximum(side.classes, 0)
    is_unread = (flow.producers[values] >= 0) & (flow.first_consumers[values] < 0)
    edges: list[tuple[int, int]] = []
    for node in np.flatnonzero(has_value & is_unread).tolist():
        value = int(side.classes[node])
        results = find_unrecorded_results(flow, value) or find_gradient_sums(flow, value)
        if node < n_pairs:
            results = (*results, *find_possible_parts(flow, value))
        result_nodes = {int(nodes[result]) for result in results} - {node}
        if node < n_pairs:
            result_nodes = {
                result for result in result_nodes if result < n_pairs and not agrees[result]
            }
        edges += [(result_node, node) for result_node in sorted(result_nodes)]
    return Edges.from_pairs(edges)


def _sort_topologically(parents: IntLists, positions_t: Floats, positions_r: Floats) -> Ints:
    """Return the nodes with parents first, ties by their positions in the two runs.

    The earlier one counts, then the later one, whichever side is the target. Where wrong pairs make
    a cycle, the earliest of the remaining nodes comes first.
    """
    by_position = np.lexsort((np.maximum(positions_t, positions_r),
                              np.minimum(positions_t, positions_r)))  # fmt: skip
    ranks = np.empty(len(by_position), dtype=np.int64)
    ranks[by_position] = np.arange(len(by_position))
    # from here on a node is its rank
    child_lists = IntLists.from_pairs(len(ranks), ranks[parents.values], ranks[parents.rows])
    starts, children = child_lists.starts.tolist(), child_lists.values.tolist()
    n_waiting = parents.counts[by_position].tolist()
    is_done = [False] * len(ranks)
    order: list[int] = []
    for breaks_cycles in (False, True):
        for first in range(len(ranks)):
            if is_done[first] or (n_waiting[first] and not breaks_cycles):
                continue
            ready = [first]
            while ready:
                rank = heappop(ready)
                is_done[rank] = True
                order.append(rank)
                for child in children[starts[rank] : starts[rank + 1]]:
                    n_waiting[child] -= 1
                    is_ready = n_waiting[child] == 0 and not is_done[child]
                    if is_ready and (child < first or breaks_cycles):  # else its turn will come
                        heappush(ready, child)
    sorted_nodes: Ints = by_position[order]
    return sorted_nodes


def _move_forward_first(order: Ints, parents: IntLists, phase: Objects) -> Ints:
    """Return the nodes with those first that only the forward pass leads to, else in order.

    Every gradient depends on the forward pass, but the first gradients have no parents. Where a
    cycle keeps forward values waiting, they would come before these.
    """
    is_forward = phase == FORWARD
    is_later = ~is_forward
    if np.any(is_later[parents.values] & is_forward[parents.rows]):
        is_later[:] = False
        for node in order.tolist():
            is_later[node] = not is_forward[node] or any(is_later[list(parents[node])])
    is_later = is_later[order]
    return np.concatenate([order[~is_later], order[is_later]])


def _compute_positions(flow: Flow, classes: Ints) -> Floats:
    """Return (nodes,) the position of each node in the run, 0 to 1.

    It is 1 if this side does not have the value.
    """
    positions: Floats = np.where(classes >= 0, flow.positions[np.maximum(classes, 0)], 1.0)
    return positions
