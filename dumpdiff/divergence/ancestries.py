"""What a value was computed from: its nearest comparable ancestors, and what is in between."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from ..model.arrays import Flags, Floats, Ints
from ..model.verdict import AGREEING, INCOMPARABLE, UNPAIRED
from .error_shares import build_carried_share_function
from .joint_graph import JointGraph

#: States of values that were not compared; ancestries reach behind them.
UNKNOWN = (INCOMPARABLE, UNPAIRED)
#: Ancestors that are kept for the report.
_MAX_REMEMBERED = 32
#: Nodes without comparison that are kept of each side: so many of the first, where the region
#: starts, and so many of the last. A finding names 24 ops of each side, and an op has some results.
MAX_REGION_END = 24


class Ancestry(NamedTuple):
    """The nearest comparable ancestors of a value, and the unpaired nodes in between.

    Errors are NaN if there is no such ancestor.
    """

    worst_agreeing_error: float = np.nan  #: largest error of the ancestors that agree
    worst_diverged_error: float = np.nan  #: largest error of those that do not
    #: largest error of those that agree, times their share of a sum, or as one of a part of them;
    #: or of those that hold nothing but rounding errors, which are looked through otherwise
    carried_error: float = np.nan
    #: the same of the values that agree behind those that differ: what is left where a difference
    #: is undone. It is looked through like a value without comparison
    noise: float = np.nan
    #: largest cancellation of the sums on the way, times their share of a sum
    cancellation: float = 1.0
    ancestors: tuple[int, ...] = ()  #: the nearest of those ancestors, in dataflow order
    #: the nodes in between, in dataflow order: the first and the last of each side
    unpaired_nodes: tuple[int, ...] = ()

    @property
    def has_diverged(self) -> bool:
        """Whether some ancestor does not agree."""
        return not math.isnan(self.worst_diverged_error)


#: Of values without parents: one object for all of them.
_NO_ANCESTRY = Ancestry()


class Ancestries:
    """The ancestry of every node, by the states that the walk gave its parents.

    Most values agree whatever they were computed from. So an ancestry is computed when it is asked
    for, and only those of values without comparison, which others look through, are kept.
    """

    def __init__(
        self,
        graph: JointGraph,
        state: list[str],
        noisy_nodes: Container[int],
        errors: list[float],
        cancellations: list[float],
    ) -> None:
        self._graph = graph
        self._state = state  #: of the nodes as far as they were walked through
        self._noisy_nodes = noisy_nodes  #: those that agree if the differences before them do
        self._errors = errors
        self._cancellations = cancellations
        self._rounding_nodes: set[int] = set()  #: those that hold nothing but rounding errors
        self._compute_share = build_carried_share_function(graph)
        self._known: dict[int, Ancestry] = {}
        self._replaced: dict[int, Ancestry] = {}  #: what others look through is not replaced

    def __getitem__(self, node: int) -> Ancestry:
        known_ancestry = self._replaced.get(node) or self._known.get(node)
        return self._collect(node) if known_ancestry is None else known_ancestry

    def keep(self, node: int) -> Ancestry:
        """Return the ancestry of a node and keep it for what is computed from the node."""
        self._known[node] = ancestry = self._collect(node)
        return ancestry

    def mark_rounding(self, node: int, *, is_first: bool) -> None:
        """Mark a node that holds nothing but rounding errors: the first one, or what follows."""
        if is_first or not self._rounding_nodes.isdisjoint(self._graph.parents[node]):
            self._rounding_nodes.add(node)

    def replace_nodes(self, nodes: Collection[int], others: Ancestries) -> Ancestries:
        """Return the ancestries with those of some nodes taken from other ones."""
        replaced = copy(self)
        replaced._replaced = {node: others[node] for node in nodes}
        return replaced

    def measure_cancellations(self, pairs: Ints) -> Floats:
        """Return (all pairs,) the cancellation in the ancestry of some pairs, 1 for the others."""
        cancellations = np.ones(len(self._errors))
        distant_pairs = pairs[self.flag_distant()[pairs]].tolist()
        for pair in distant_pairs:
            cancellations[pair] = self._measure_cancellation(pair)
        return cancellations

    def _measure_cancellation(self, node: int) -> float:
        """Return the cancellation in the ancestry of a node, see :class:`Ancestry`."""
        known_ancestry = self._replaced.get(node) or self._known.get(node)
        if known_ancestry is not None:
            return known_ancestry.cancellation
        cancellation = 1.0
        for parent in self._graph.parents[node]:
            beyond = self._find_beyond(parent, node)
            if beyond is not None:
                parent_cancellation = max(self._cancellations[parent], beyond.cancellation)
                share = self._compute_share(parent, node)
                cancellation = max(cancellation, share * parent_cancellation)
        return cancellation

    def _find_beyond(self, parent: int, node: int) -> Ancestry | None:
        """Return the ancestry of a parent that was not compared, None for others.

        In a cycle, nothing is known of a parent that the walk comes to later.
        """
        if self._graph.ranks[parent] > self._graph.ranks[node]:
            return _NO_ANCESTRY
        return self._known[parent] if self._state[parent] in UNKNOWN else None

    def flag_distant(self) -> Flags:
        """Return (nodes,) whether a parent was not compared: the ancestry reaches behind it.

        The others have no unpaired nodes in between, and a cancellation of 1.
        """
        return self._flag_children(np.ones(self._graph.n_nodes, dtype=bool))

    def flag_ops_between(self) -> Flags:
        """Return (nodes,) false where no op computed what is between a node and its ancestors."""
        target, reference = self._graph.sides
        is_computed = (target.producers >= 0) | (reference.producers >= 0)
        has_producer = is_computed.tolist()
        for node, ancestry in self._known.items():
            is_computed[node] |= any(has_producer[other] for other in ancestry.unpaired_nodes)
        return self._flag_children(is_computed)

    def _flag_children(self, is_chosen: Flags) -> Flags:
        """Return (nodes,) whether one of the chosen nodes is a parent that was not compared."""
        parents, children = self._graph.edges
        ranks = np.array(self._graph.ranks)
        is_unknown = np.array([name in UNKNOWN for name in self._state], dtype=bool)
        is_unknown_edge = is_unknown[parents] | (ranks[parents] > ranks[children])
        flags = np.zeros(self._graph.n_nodes, dtype=bool)
        flags[children[is_unknown_edge & is_chosen[parents]]] = True
        return flags

    def _collect(self, node: int) -> Ancestry:
        """Return the ancestry of a node; an incomparable parent is replaced by its own ancestry."""
        parents = self._graph.parents[node]
        if not parents:
            return _NO_ANCESTRY
        state, ranks = self._state, self._graph.ranks
        rank = ranks[node]
        agreeing_errors, diverged_errors, carried_errors, noises = [], [], [], []
        cancellation = 1.0
        ancestors: dict[int, None] = {}
        unpaired_nodes: dict[int, None] = {}
        for parent in parents:
            share = self._compute_share(parent, node)
            is_later = ranks[parent] > rank
            if is_later or state[parent] in UNKNOWN:
                beyond = _NO_ANCESTRY if is_later else self._known[parent]
                agreeing_errors.append(beyond.worst_agreeing_error)
                diverged_errors.append(beyond.worst_diverged_error)
                carried_errors.append(share * beyond.carried_error)
                if parent in self._rounding_nodes:
                    carried_errors.append(share * self._errors[parent])
                noises.append(share * beyond.noise)
                parent_cancellation = max(self._cancellations[parent], beyond.cancellation)
                cancellation = max(cancellation, share * parent_cancellation)
                ancestors.update(dict.fromkeys(beyond.ancestors))
                unpaired_nodes.update(dict.fromkeys((*beyond.unpaired_nodes, parent)))
            else:
                error = self._errors[parent]
                ancestors[parent] = None
                if state[parent] == AGREEING:
                    agreeing_errors.append(error)
                    carried_errors.append(share * error)
                else:
                    diverged_errors.append(error)
                is_noise = state[parent] == AGREEING or parent in self._noisy_nodes
                noises.append(share * (error if is_noise else self._known[parent].noise))
        return Ancestry(
            find_largest(agreeing_errors),
            find_largest(diverged_errors),
            find_largest(carried_errors),
            find_largest(noises),
            cancellation,
            tuple(sorted(ancestors, key=ranks.__getitem__)[-_MAX_REMEMBERED:]),
            select_region_ends(self._graph, sorted(unpaired_nodes, key=ranks.__getitem__)),
        )


def select_region_ends(graph: JointGraph, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the first and the last nodes of each side, of nodes in dataflow order.

    One side may have many times the values of the other, and its values may all come later.
    """
    if len(nodes) <= MAX_REGION_END:
        return tuple(nodes)
    kept_nodes: set[int] = set()
    for classes in (graph.target_classes, graph.reference_classes):
        nodes_of_side = [node for node in nodes if classes[node] >= 0]
        kept_nodes.update(nodes_of_side[:MAX_REGION_END])
        kept_nodes.update(nodes_of_side[-MAX_REGION_END:])
    return tuple(node for node in nodes if node in kept_nodes)


def find_largest(errors: Sequence[float]) -> float:
    """Return the largest of the errors that are known, NaN if none is."""
    if not errors:
        return math.nan
    if len(errors) == 1:
        return errors[0]
    numbers = [error for error in errors if not math.isnan(error)]
    return max(numbers, default=math.nan)
