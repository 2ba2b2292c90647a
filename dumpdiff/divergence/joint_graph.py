"""Both dataflow graphs as one: a node is a pair of value classes, or a class that only one side has.

Where one recorder left a hole the other side's edges bridge it; what neither recorded is bridged by module calls and by
order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from ..alignment import Alignment
from ..alignment.fused_groups import find_outputs
from ..comparison import Comparison
from ..graph import Flow
from ..graph.missing_edges import find_bridge, find_enclosing_inputs, has_missing_producer
from ..model.arrays import Floats, Ints, Objects
from ..model.trace import FORWARD


@dataclass(frozen=True)
class JointGraph:
    """The joined graph; its nodes are the pairs (in the order of ``comparison.pairs``), then each side's rest."""

    comparison: Comparison
    target_nodes: Ints  #: (target classes,) node of each class
    reference_nodes: Ints
    target_classes: Ints  #: (nodes,) target class or -1
    reference_classes: Ints
    parents: tuple[tuple[int, ...], ...]  #: per node: nodes it was computed from, by either record
    order: tuple[int, ...]  #: nodes, parents first
    phase: Objects  #: (nodes,) of the target's class, of the reference's where the target has none
    bridges: Counter[str]  #: how many holes were bridged by what

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.target_classes)


def build_joint_graph(comparison: Comparison) -> JointGraph:
    """Join the two sides' dataflow along the pairs of a comparison."""
    target, reference = comparison.alignment.target, comparison.alignment.reference
    pairs_t, pairs_r = (
        comparison.pairs["target"].to_numpy(),
        comparison.pairs["reference"].to_numpy(),
    )
    groups = [
        (node, group) for node, group in enumerate(comparison.pairs["group"]) if group is not None
    ]
    parts_t = {value: node for node, group in groups for value in group.target}
    parts_r = {value: node for node, group in groups for value in group.reference}
    node_t, alone_t = _numbered(len(target.classes), pairs_t, parts_t, len(pairs_t))
    node_r, alone_r = _numbered(
        len(reference.classes), pairs_r, parts_r, len(pairs_t) + len(alone_t)
    )
    class_t = np.concatenate([pairs_t, alone_t, np.full(len(alone_r), -1)])
    class_r = np.concatenate([pairs_r, np.full(len(alone_t), -1), alone_r])
    nodes = len(class_t)
    parents_t = _lifted(nodes, node_t, _parents(target))
    parents_r = _lifted(nodes, node_r, _parents(reference))
    bridges: Counter[str] = Counter()
    recorded_t = [list(parents) for parents in parents_t]
    for whole, parts in _cuts(comparison.alignment, node_t, node_r):
        for part in parts:
            parents_r[part].append(whole)
    _bridge(target, class_t, node_t, parents_t, parents_r, bridges)
    _bridge(reference, class_r, node_r, parents_r, recorded_t, bridges)
    phase = np.where(
        class_t >= 0,
        target.classes["phase"].to_numpy()[np.maximum(class_t, 0)],
        reference.classes["phase"].to_numpy()[np.maximum(class_r, 0)],
    )
    place = np.minimum(_places(target, class_t), _places(reference, class_r))
    parents = tuple(tuple(dict.fromkeys(a + b)) for a, b in zip(parents_t, parents_r, strict=True))
    return JointGraph(
        comparison, node_t, node_r, class_t, class_r, parents, _sort_topologically(parents, place), phase, bridges
    )  # fmt: skip


def _numbered(
    count: int, paired: Ints, parts: dict[int, int], first_free: int
) -> tuple[Ints, Ints]:
    """(node of each class, classes without a partner); the parts of a fused tensor share its node."""
    node = np.full(count, -1)
    node[paired] = np.arange(len(paired))
    node[list(parts)] = list(parts.values())
    alone = np.flatnonzero(node < 0)
    node[alone] = first_free + np.arange(len(alone))
    return node, alone


def _parents(flow: Flow) -> list[list[int]]:
    """Per class those it was computed from: what its maker read; for gradients the gradients of what it fed."""
    producer = flow.classes["producer"].to_numpy()
    parents = [list(flow.reads[op]) if op >= 0 else [] for op in producer.tolist()]
    for value, gradient in flow.recorded_gradients.items():
        if producer[gradient] < 0:
            parents[gradient] += [g for g in _gradients_after(flow, value) if g != gradient]
    named = {name: value for value, name in enumerate(flow.classes["parameter"]) if name}
    for gradient, name in enumerate(flow.classes["gradient_of"]):
        if name in named and not parents[gradient]:
            parents[gradient] += [g for g in _gradients_after(flow, named[name]) if g != gradient]
    for gradient, value in _contributions(flow):
        parents[value] += [gradient] if gradient not in parents[value] and gradient != value else []
    return parents


def _contributions(flow: Flow) -> Iterator[tuple[int, int]]:
    """(gradient that no recorded op reads, gradient it went into): of what the forward call read, or was cut from.

    A parameter's gradient went into no other.
    """
    forward, final = flow.trace.ops["forward"].tolist(), flow.list_column("gradient_of")
    for op, call in enumerate(forward):
        if call < 0 or flow.phases[op] == FORWARD:
            continue
        loose = [value for value in flow.writes[op] if not flow.consumers[value] and not final[value]]
        given = flow.reads[call] if loose else ()
        sources = {value for value in given if value in flow.recorded_gradients}
        for value in given:
            if value not in sources and has_missing_producer(flow, value):
                sources.update(find_enclosing_inputs(flow, call, value))
        for source in sources & flow.recorded_gradients.keys():
            yield from ((gradient, flow.recorded_gradients[source]) for gradient in loose)


def _gradients_after(flow: Flow, value: int) -> list[int]:
    """Gradients of the outputs of the forward ops that read a value; where none was recorded, of what is read next."""
    found: dict[int, None] = {}
    seen = {value}
    stack = [value]
    while stack and len(seen) < 64:
        for op in flow.consumers[stack.pop()]:
            if flow.phases[op] != FORWARD:
                continue
            for output in flow.writes[op]:
                if output in flow.recorded_gradients:
                    found[flow.recorded_gradients[output]] = None
                elif output not in seen:
                    seen.add(output)
                    stack.append(output)
    return list(found)


def _cuts(alignment: Alignment, node_t: Ints, node_r: Ints) -> Iterator[tuple[int, set[int]]]:
    """(node of what a fused weight made, nodes of what the weights it is fused from made): cut from it, unrecorded."""
    sides = (alignment.target, node_t), (alignment.reference, node_r)
    for group in alignment.groups:
        fused, cut = (
            {int(nodes[value]) for leaf in leaves for value in find_outputs(flow, leaf)}
            for leaves, (flow, nodes) in sorted(
                zip((group.target, group.reference), sides, strict=True),
                key=lambda side: len(side[0]),
            )
        )
        if len(fused) == 1 and not fused & cut:
            yield fused.pop(), cut


def _lifted(nodes: int, node_of: Ints, parents: list[list[int]]) -> list[list[int]]:
    lifted: list[list[int]] = [[] for _ in range(nodes)]
    at = node_of.tolist()
    for value, above in enumerate(parents):
        node = at[value]
        lifted[node] += [at[v] for v in above if at[v] != node]
    return lifted


def _bridge(
    flow: Flow,
    class_of: Ints,
    node_of: Ints,
    parents: list[list[int]],
    other_parents: list[list[int]],
    bridges: Counter[str],
) -> None:
    """Give the holes of one side's record parents, unless the other side's record explains them."""
    for node, value in enumerate(class_of.tolist()):
        if value < 0 or flow.producers[value] >= 0 or parents[node]:
            continue
        if other_parents[node]:
            bridges["other side"] += 1
        elif found := find_bridge(flow, value):
            parents[node] = [int(node_of[v]) for v in found.parents if node_of[v] != node]
            bridges[found.evidence] += 1


def _sort_topologically(parents: Sequence[tuple[int, ...]], place: Floats) -> tuple[int, ...]:
    """Parents first, ties by place; where wrong pairs make a circle, the earliest of those left comes first."""
    children: list[list[int]] = [[] for _ in parents]
    waiting = [0] * len(parents)
    for node, above in enumerate(parents):
        for parent in above:
            children[parent].append(node)
            waiting[node] += 1
    at = place.tolist()
    by_place = iter(np.argsort(place, kind="stable").tolist())
    ready = [(at[node], node) for node, count in enumerate(waiting) if count == 0]
    heapify(ready)
    done = [False] * len(parents)
    order: list[int] = []
    while len(order) < len(parents):
        node = heappop(ready)[1] if ready else next(n for n in by_place if not done[n])
        if done[node]:
            continue
        done[node] = True
        order.append(node)
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0 and not done[child]:
                heappush(ready, (at[child], child))
    return tuple(order)


def _places(flow: Flow, class_of: Ints) -> Floats:
    """(nodes,) where in the run each node stands, 0 to 1: at its maker, else its first reader; 1 if absent."""
    producer = flow.classes["producer"].to_numpy()
    first = np.array([readers[0] if readers else 0 for readers in flow.consumers], dtype=int)
    place = np.where(producer >= 0, producer, first) / max(1, len(flow.trace.ops))
    places: Floats = np.where(class_of >= 0, place[np.maximum(class_of, 0)], 1.0)
    return places
