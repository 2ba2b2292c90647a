"""Both dataflow graphs as one: a node is a pair of value classes, or a class without a partner.

An edge that one recorder misses is taken from the other side. An edge that both miss is bridged by
evidence, see ``graph.missing_edges``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from ..alignment import Alignment
from ..alignment.fused_groups import find_outputs
from ..comparison import Comparison
from ..graph import Flow
from ..graph.joins import find_joined_parts
from ..graph.missing_edges import (
    find_bridges,
    find_enclosing_inputs,
    find_possible_parts,
    find_unrecorded_results,
    has_missing_producer,
)
from ..model.arrays import Flags, Floats, Ints, Objects
from ..model.trace import FORWARD, OPTIMIZER

#: Values that are searched for the next recorded gradient; a longer search leaves the layer.
_MAX_SEARCHED_VALUES = 64


@dataclass(frozen=True)
class GraphSide:
    """One side of a joint graph."""

    flow: Flow
    kinds: tuple[str, ...]  #: canonical operator kind of each op
    nodes: Ints  #: (classes,) node of each class
    classes: Ints  #: (nodes,) class of each node, -1 if the side has none

    @cached_property
    def group_sizes(self) -> dict[int, int]:
        """Op -> number of ranks that it exchanges values with, itself included, where recorded."""
        table = self.flow.trace.communications
        members = zip(table["op"].tolist(), table["members"].tolist(), strict=True)
        return {op: len(ranks) for op, ranks in members if ranks}

    def find_producer(self, node: int) -> int:
        """Return the op that computed a node, -1 if none did."""
        value = int(self.classes[node])
        return int(self.flow.producers[value]) if value >= 0 else -1


@dataclass(frozen=True)
class JointGraph:
    """The joint graph of a comparison.

    Its nodes are the pairs, in the order of ``comparison.pairs``, then the unpaired classes of the
    target, then those of the reference.
    """

    comparison: Comparison
    target_nodes: Ints  #: (target classes,) node of each class
    reference_nodes: Ints
    target_classes: Ints  #: (nodes,) target class or -1
    reference_classes: Ints
    parents: tuple[tuple[int, ...], ...]  #: per node: nodes it was computed from, by either record
    order: tuple[int, ...]  #: nodes, parents first
    phase: Objects  #: (nodes,) of the target's class, else of the reference's
    bridges: Counter[str]  #: evidence -> number of missing edges bridged by it
    joined_nodes: frozenset[int]  #: whose parts were recorded, but not the op that joined them
    guessed_nodes: frozenset[int]  #: whose parents only the order of execution names

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.target_classes)

    @cached_property
    def sides(self) -> tuple[GraphSide, GraphSide]:
        """The target's side and the reference's."""
        alignment = self.comparison.alignment
        return (
            GraphSide(
                alignment.target, alignment.target_kinds, self.target_nodes, self.target_classes
            ),
            GraphSide(
                alignment.reference,
                alignment.reference_kinds,
                self.reference_nodes,
                self.reference_classes,
            ),
        )

    @cached_property
    def ranks(self) -> list[int]:
        """Per node: its place in the order."""
        ranks: list[int] = np.argsort(self.order).tolist()
        return ranks

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """(parents, children) of all edges, those of one child next to each other."""
        counts = np.fromiter(map(len, self.parents), dtype=np.int64, count=self.n_nodes)
        parents = np.fromiter(chain.from_iterable(self.parents), np.int64, int(counts.sum()))
        return parents, np.repeat(np.arange(self.n_nodes), counts)

    @cached_property
    def children(self) -> list[list[int]]:
        """Per node: the nodes that are computed from it, by either record."""
        children: list[list[int]] = [[] for _ in range(self.n_nodes)]
        for node, parents in enumerate(self.parents):
            for parent in parents:
                children[parent].append(node)
        return children


def build_joint_graph(comparison: Comparison) -> JointGraph:
    """Join the dataflow of the two sides along the pairs of a comparison."""
    target, reference = comparison.alignment.target, comparison.alignment.reference
    paired_t = comparison.pairs["target"].to_numpy()
    paired_r = comparison.pairs["reference"].to_numpy()
    part_nodes_t: dict[int, int] = {}
    part_nodes_r: dict[int, int] = {}
    for node, group in enumerate(comparison.pairs["group"]):
        if group is not None:
            part_nodes_t.update(dict.fromkeys(group.target, node))
            part_nodes_r.update(dict.fromkeys(group.reference, node))
    is_slot_pair = comparison.pairs["slot_pair"].notna().to_numpy()
    nodes_t, unpaired_t = _number_nodes(
        len(target.classes), paired_t, is_slot_pair, part_nodes_t, len(paired_t)
    )
    nodes_r, unpaired_r = _number_nodes(
        len(reference.classes),
        paired_r,
        is_slot_pair,
        part_nodes_r,
        len(paired_t) + len(unpaired_t),
    )
    classes_t = np.concatenate([paired_t, unpaired_t, np.full(len(unpaired_r), -1)])
    classes_r = np.concatenate([paired_r, np.full(len(unpaired_t), -1), unpaired_r])
    n_nodes = len(classes_t)
    parents_t = _map_parents(n_nodes, nodes_t, _collect_parents(target))
    parents_r = _map_parents(n_nodes, nodes_r, _collect_parents(reference))
    for fused_node, part_nodes, is_target in _iterate_fused_outputs(
        comparison.alignment, nodes_t, nodes_r
    ):
        fused_parents = parents_t if is_target else parents_r
        for part_node in part_nodes:
            fused_parents[part_node].append(fused_node)
    _add_slot_parents(comparison, nodes_t, nodes_r, (parents_t, parents_r))
    bridges: Counter[str] = Counter()
    recorded_parents_t = [list(parents) for parents in parents_t]
    bridged_nodes: dict[int, str] = {
        **_bridge_missing_edges(target, classes_t, nodes_t, parents_t, parents_r, bridges),
        **_bridge_missing_edges(
            reference, classes_r, nodes_r, parents_r, recorded_parents_t, bridges
        ),
    }
    agrees = comparison.pairs["agrees"].to_numpy(dtype=bool)
    for flow, classes, nodes, side_parents in (
        (target, classes_t, nodes_t, parents_t),
        (reference, classes_r, nodes_r, parents_r),
    ):
        _bridge_unread_values(flow, classes, nodes, agrees, side_parents)
    parents = tuple(tuple(dict.fromkeys(a + b)) for a, b in zip(parents_t, parents_r, strict=True))
    positions_t = _compute_positions(target, classes_t)
    positions_r = _compute_positions(reference, classes_r)
    phases_t, phases_r = target.classes["phase"].to_numpy(), reference.classes["phase"].to_numpy()
    phase = np.where(
        classes_t >= 0, phases_t[np.maximum(classes_t, 0)], phases_r[np.maximum(classes_r, 0)]
    )
    return JointGraph(
        comparison,
        nodes_t,
        nodes_r,
        classes_t,
        classes_r,
        parents,
        _move_forward_first(_sort_topologically(parents, positions_t, positions_r), parents, phase),
        phase,
        bridges,
        frozenset(node for node, name in bridged_nodes.items() if name == "joined"),
        frozenset(node for node, name in bridged_nodes.items() if name == "order"),
    )


def _add_slot_parents(
    comparison: Comparison,
    nodes_t: Ints,
    nodes_r: Ints,
    parents_of_sides: tuple[list[list[int]], list[list[int]]],
) -> None:
    """Make the own nodes of both values the parents of a slot pair of inputs.

    An op reads what another op wrote: the value in its slot should be one of these two.
    """
    for node, slot_pair in comparison.slot_pairs:
        if slot_pair.slot_kind != "input":
            continue
        own_nodes = {int(nodes_t[slot_pair.target]), int(nodes_r[slot_pair.reference])}
        for parents in parents_of_sides:
            parents[node] += sorted(own_nodes - {node})


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


def _collect_parents(flow: Flow) -> list[list[int]]:
    """Return per class the classes it was computed from: the operands of its producer.

    The gradient that a backward record was given comes from the gradients of what its value feeds.
    """
    parents: list[list[int]] = [[] for _ in range(len(flow.classes))]
    for value, producer in enumerate(flow.list_column("producer")):
        if producer >= 0:
            parents[value] = list(flow.operands[producer])
    for value, gradient in flow.recorded_gradients.items():
        if flow.producers[gradient] < 0:
            parents[gradient] += _find_next_gradients(flow, value, gradient)
    for parameter, gradient in _iterate_parameter_gradients(flow):
        if not parents[gradient]:
            parents[gradient] += _find_next_gradients(flow, parameter, gradient)
    for zero, total in _iterate_zero_terms(flow):
        if zero not in parents[total]:
            parents[total].append(zero)
    for gradient, total in _iterate_contributions(flow):
        if gradient != total and gradient not in parents[total]:
            parents[total].append(gradient)
    return parents


def _iterate_parameter_gradients(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (parameter, gradient) as the record names them."""
    names = flow.list_column("parameter")
    parameters = {name: value for value, name in enumerate(names) if name}
    parameter_names = flow.list_column("gradient_of")
    for gradient, name in enumerate(parameter_names):
        if name in parameters:
            yield parameters[name], gradient


def _iterate_zero_terms(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (term, sum) of ops of the optimizer whose result is one of the values that they read.

    In a first step the moments are 0, so the sum of the decayed moment and the gradient is the
    value that the gradient's term is, and no edge leads there from the other term. A term that
    came later may depend on the sum and is left out.
    """
    for op in np.flatnonzero(flow.is_layout).tolist():
        if flow.phases[op] != OPTIMIZER or len(flow.reads[op]) < 2:
            continue
        rows = flow.get_tensor_ids(op)
        results = set(flow.tensor_class[rows[flow.is_computed[rows]]].tolist()) - {-1}
        if len(results) != 1:
            continue
        total = results.pop()
        for term in flow.reads[op]:
            if term != total and 0 <= flow.producers[term] < flow.producers[total]:
                yield term, total


def _iterate_contributions(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (gradient that no recorded op reads, gradient that it was added to).

    The latter is the gradient of what the forward call read, or of what that was cut from. The
    gradient of a parameter is not added to another.
    """
    calls, parameter_names = flow.trace.ops["forward"].tolist(), flow.list_column("gradient_of")
    for op, call in enumerate(calls):
        if call < 0 or flow.phases[op] == FORWARD:
            continue
        unread_gradients = [
            value
            for value in flow.writes[op]
            if not flow.consumers[value] and not parameter_names[value]
        ]
        if not unread_gradients:
            continue
        yield from _iterate_partial_gradients(flow, unread_gradients, call)
        for source in _find_gradient_sources(flow, call):
            total = flow.recorded_gradients[source]
            yield from ((gradient, total) for gradient in unread_gradients)


def _iterate_partial_gradients(
    flow: Flow, unread_gradients: Sequence[int], call: int
) -> Iterator[tuple[int, int]]:
    """Yield (unread result of a backward record, named gradient of a parameter that it adds to).

    A parameter that several calls read, as the steps of a recurrence, has a part from each. The
    gradient of one parameter is no part of that of another.
    """
    for parameter in flow.operands[call]:
        total = flow.gradients_of_parameters.get(flow.list_column("parameter")[parameter], -1)
        for value in unread_gradients:
            if total >= 0 and flow.sizes[value] == flow.sizes[total]:
                yield value, total


def _find_gradient_sources(flow: Flow, call: int) -> set[int]:
    """Return the values with a recorded gradient that a call read, or that its inputs come from."""
    with_gradient = flow.recorded_gradients.keys()
    inputs = flow.operands[call]
    sources = with_gradient & inputs
    for value in inputs:
        if value in sources:
            continue
        if has_missing_producer(flow, value):
            sources.update(find_enclosing_inputs(flow, call, value))
    return sources & with_gradient


def _find_next_gradients(flow: Flow, value: int, gradient: int) -> list[int]:
    """Return the other gradients of the outputs of the forward ops that read a value.

    An output without a recorded gradient is replaced by what is computed from it.
    """
    next_gradients: dict[int, None] = {}
    visited = {value}
    stack = [value]
    while stack and len(visited) < _MAX_SEARCHED_VALUES:
        for op in flow.users[stack.pop()]:
            if flow.phases[op] != FORWARD:
                continue
            for output in flow.writes[op]:
                if output in flow.recorded_gradients:
                    next_gradients[flow.recorded_gradients[output]] = None
                elif output not in visited:
                    visited.add(output)
                    stack.append(output)
    next_gradients.pop(gradient, None)
    return list(next_gradients)


def _iterate_fused_outputs(
    alignment: Alignment, nodes_t: Ints, nodes_r: Ints
) -> Iterator[tuple[int, set[int], bool]]:
    """Yield (node of a fused weight's output, nodes of its parts' outputs, is it the target's).

    The side with the fused weight cuts its output into those parts, but no recorder shows it.
    """
    for group in alignment.groups:
        output_nodes_t = _collect_output_nodes(
            alignment.target, alignment.target_kinds, group.target, nodes_t
        )
        output_nodes_r = _collect_output_nodes(
            alignment.reference, alignment.reference_kinds, group.reference, nodes_r
        )
        fused_nodes, part_nodes = output_nodes_t, output_nodes_r
        is_target = len(group.target) <= len(group.reference)
        if not is_target:
            fused_nodes, part_nodes = output_nodes_r, output_nodes_t
        if len(fused_nodes) == 1 and fused_nodes.isdisjoint(part_nodes):
            yield fused_nodes.pop(), part_nodes, is_target


def _collect_output_nodes(
    flow: Flow, kinds: Sequence[str], leaves: Sequence[int], nodes: Ints
) -> set[int]:
    return {int(nodes[value]) for leaf in leaves for value in find_outputs(flow, kinds, leaf)}


def _map_parents(n_nodes: int, nodes: Ints, parents: list[list[int]]) -> list[list[int]]:
    """Return per node its parent nodes, from the parent classes of one side's classes."""
    parent_nodes: list[list[int]] = [[] for _ in range(n_nodes)]
    node_list = nodes.tolist()
    for node, parent_classes in zip(node_list, parents, strict=True):
        parent_nodes[node] += [node_list[v] for v in parent_classes if node_list[v] != node]
    return parent_nodes


def _bridge_missing_edges(
    flow: Flow,
    classes: Ints,
    nodes: Ints,
    parents: list[list[int]],
    other_parents: list[list[int]],
    bridges: Counter[str],
) -> dict[int, str]:
    """Give parents to the nodes of one side with a missing producer, and count the evidence.

    Returns node -> evidence. Where the record of the other side has the edge, only the parts of a
    joined tensor are added.
    """
    leaves = np.flatnonzero((classes >= 0) & (flow.producers[np.maximum(classes, 0)] < 0))
    open_leaves = [node for node in leaves.tolist() if not parents[node]]
    lacking_values = [int(classes[node]) for node in open_leaves if not other_parents[node]]
    bridge_of = find_bridges(flow, lacking_values)
    evidence_of: dict[int, str] = {}
    for node in open_leaves:
        if other_parents[node]:
            joined_parts = find_joined_parts(flow, int(classes[node]))
            parents[node] = [int(nodes[part]) for part in joined_parts if nodes[part] != node]
            bridges["joined" if parents[node] else "other side"] += 1
            if parents[node]:
                evidence_of[node] = "joined"
            continue
        bridge = bridge_of.get(int(classes[node]))
        if bridge is not None:
            parent_nodes = [int(nodes[parent]) for parent in bridge.parents]
            parents[node] = [parent for parent in parent_nodes if parent != node]
            bridges[bridge.evidence] += 1
            evidence_of[node] = bridge.evidence
    return evidence_of


def _bridge_unread_values(
    flow: Flow, classes: Ints, nodes: Ints, agrees: Flags, parents: list[list[int]]
) -> None:
    """Lead values that no recorded op reads to those that follow from them.

    ``agrees`` is of the pairs, which are the first nodes. Two pairs are connected only if both
    differ: then one difference follows from the other. That a pair agrees shows nothing about one
    from which it may have been computed.
    """
    n_pairs = len(agrees)
    for node in np.flatnonzero(classes >= 0).tolist():
        value = int(classes[node])
        if node >= n_pairs:
            result_nodes = {int(nodes[result]) for result in find_unrecorded_results(flow, value)}
        elif agrees[node]:
            continue
        else:
            results = (*find_unrecorded_results(flow, value), *find_possible_parts(flow, value))
            result_nodes = {int(nodes[result]) for result in results}
            result_nodes = {
                result for result in result_nodes if result < n_pairs and not agrees[result]
            }
        for result_node in sorted(result_nodes - {node}):
            if node not in parents[result_node]:
                parents[result_node].append(node)


def _sort_topologically(
    parents: Sequence[tuple[int, ...]], positions_t: Floats, positions_r: Floats
) -> tuple[int, ...]:
    """Return the nodes with parents first, ties by their positions in the two runs.

    The earlier one counts, then the later one, whichever side is the target. Where wrong pairs make
    a cycle, the earliest of the remaining nodes comes first.
    """
    by_position = np.lexsort((np.maximum(positions_t, positions_r),
                              np.minimum(positions_t, positions_r)))  # fmt: skip
    ranks = np.empty(len(by_position), dtype=np.int64)
    ranks[by_position] = np.arange(len(by_position))
    children: list[list[int]] = [[] for _ in parents]
    n_waiting = [0] * len(parents)
    for node, parent_nodes in enumerate(parents):
        for parent in parent_nodes:
            children[parent].append(node)
            n_waiting[node] += 1
    rank_list = ranks.tolist()
    remaining_nodes = iter(by_position.tolist())
    ready_nodes = [(rank_list[node], node) for node, n in enumerate(n_waiting) if n == 0]
    heapify(ready_nodes)
    is_done = [False] * len(parents)
    order: list[int] = []
    while len(order) < len(parents):
        node = heappop(ready_nodes)[1] if ready_nodes else next(remaining_nodes)
        if is_done[node]:
            continue
        is_done[node] = True
        order.append(node)
        for child in children[node]:
            n_waiting[child] -= 1
            if n_waiting[child] == 0 and not is_done[child]:
                heappush(ready_nodes, (rank_list[child], child))
    return tuple(order)


def _move_forward_first(
    order: Sequence[int], parents: Sequence[tuple[int, ...]], phase: Objects
) -> tuple[int, ...]:
    """Return the nodes with those first that only the forward pass leads to, else in order.

    Every gradient depends on the forward pass, but the first gradients have no parents. Where a
    cycle keeps forward values waiting, they would come before these.
    """
    first_nodes: list[int] = []
    later_nodes: dict[int, None] = {}
    is_forward = (phase == FORWARD).tolist()
    for node in order:
        depends_on_later = any(parent in later_nodes for parent in parents[node])
        if depends_on_later or not is_forward[node]:
            later_nodes[node] = None
        else:
            first_nodes.append(node)
    return (*first_nodes, *later_nodes)


def _compute_positions(flow: Flow, classes: Ints) -> Floats:
    """Return (nodes,) the position of each node in the run, 0 to 1.

    It is 1 if this side does not have the value.
    """
    positions: Floats = np.where(classes >= 0, flow.positions[np.maximum(classes, 0)], 1.0)
    return positions
