"""The joint dataflow of two sides with the errors of its pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ..comparison import Comparison
from ..comparison.op_kinds import OpKinds
from ..graph import Flow, find_common_dtype, list_kept_values
from ..graph.gradients import VALUE_DEPENDENT_KINDS
from ..model.arrays import Flags, Floats, Ints, Objects, view_numbers
from ..model.int_lists import IntLists
from ..model.trace import FORWARD


@dataclass(frozen=True)
class GraphSide:
    """One side of a joint graph."""

    flow: Flow
    kinds: tuple[str, ...]  #: canonical operator kind of each op
    nodes: Ints  #: (classes,) node of each class
    classes: Ints  #: (nodes,) class of each node, -1 if the side has none

    @cached_property
    def op_kinds(self) -> OpKinds:
        """The kinds of the ops as numbers."""
        return OpKinds.from_names(self.kinds)

    @cached_property
    def rms(self) -> Floats:
        """(classes,) root mean square of the elements, NaN if unknown."""
        return np.array(self.flow.rms, dtype=float)

    @cached_property
    def producers(self) -> Ints:
        """(nodes,) op that produced each node's value, -1 if none did."""
        producers: Ints = np.where(self.classes >= 0, self.flow.producers[self.classes], -1)
        return producers

    @cached_property
    def value_dependent_calls(self) -> Sequence[int]:
        """(nodes,) the forward call with whose values a gradient is computed, -1 if there is none.

        The record of a backward call does not name these values.
        """
        is_dependent = self.op_kinds.flag(VALUE_DEPENDENT_KINDS.__contains__)
        calls = self.flow.trace.ops["forward"].to_numpy()
        dependent_calls = np.where((calls >= 0) & is_dependent[calls], calls, -1)
        return view_numbers(np.append(dependent_calls, -1)[self.producers])

    @cached_property
    def group_sizes(self) -> dict[int, int]:
        """Op -> number of ranks that it exchanges values with, itself included, where recorded."""
        table = self.flow.trace.communications
        members = zip(table["op"].tolist(), table["members"].tolist(), strict=True)
        return {op: len(ranks) for op, ranks in members if ranks}

    def find_producer(self, node: int) -> int:
        """Return the op that computed a node, -1 if none did."""
        return int(self.producers[node])


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
    parents: IntLists  #: per node: nodes it was computed from, by either record
    order: Ints  #: nodes, parents first
    phase: Objects  #: (nodes,) of the target's class, else of the reference's
    bridges: Counter[str]  #: evidence -> number of missing edges bridged by it
    joined_nodes: frozenset[int]  #: whose parts were recorded, but not the op that joined them
    guessed_nodes: frozenset[int]  #: whose parents only the order of execution names

    @cached_property
    def is_kept(self) -> Flags:
        """(pairs,) true for new weights and the states of optimizers: they outlive the step."""
        pairs, sides = self.comparison.pairs, self.comparison.alignment.sides
        kept_t, kept_r = ({*chain(*map(list_kept_values, s.updates.values()))} for s in sides)
        is_update = pairs["target"].isin(kept_t) & pairs["reference"].isin(kept_r)
        flags: Flags = (is_update | (pairs["evidence"] == "update")).to_numpy()
        return flags

    @cached_property
    def values_of_gradients(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Per side: class of a gradient -> classes of the values that have it."""
        values_of_sides: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        for values_of, own in zip(
            values_of_sides, self.comparison.alignment.gradients or (), strict=False
        ):
            for value, gradient in own.by_value.items():
                values_of.setdefault(gradient, []).append(value)
        return values_of_sides

    @cached_property
    def is_precise(self) -> bool:
        """Whether both sides compute in float32 or finer, where equal values are equal."""
        target, reference = (side.flow for side in self.sides)
        return find_common_dtype(target, reference) == "float32"

    @cached_property
    def median_error(self) -> float:
        """Median error of the pairs that an op of the forward pass computed, 0 if none is known."""
        pairs = self.comparison.pairs
        is_computed = self.phase[: len(pairs)] == FORWARD
        for side in self.sides:
            is_computed &= side.flow.producers[side.classes[: len(pairs)]] >= 0
        errors = pairs["error"].to_numpy(dtype=float)[is_computed]
        return float(np.nanmedian(errors)) if np.isfinite(errors).any() else 0.0

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
    def sizes(self) -> Ints:
        """(nodes,) the number of elements of each value."""
        sizes = np.zeros(self.n_nodes, dtype=np.int64)
        for side in reversed(self.sides):  # of a pair, the target's
            has_value = side.classes >= 0
            sizes[has_value] = side.flow.sizes[side.classes[has_value]]
        return sizes

    @cached_property
    def ranks(self) -> Sequence[int]:
        """Per node: its place in the order."""
        return view_numbers(np.argsort(self.order))

    def sort_nodes(self, is_chosen: Flags) -> list[int]:
        """Return the chosen nodes, parents first."""
        nodes: list[int] = self.order[is_chosen[self.order]].tolist()
        return nodes

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """(parents, children) of all edges, those of one child next to each other."""
        return self.parents.values, self.parents.rows

    @cached_property
    def children(self) -> IntLists:
        """Per node: the nodes that are computed from it, by either record."""
        return self.parents.invert(self.n_nodes)


def build_joint_graph(comparison: Comparison) -> JointGraph:
    """Add the errors of a comparison to the joint dataflow of its alignment."""
    dataflow = comparison.join_dataflow()
    target, reference = dataflow.sides
    return JointGraph(
        comparison,
        target.nodes,
        reference.nodes,
        target.classes,
        reference.classes,
        dataflow.parents,
        dataflow.order,
        dataflow.phase,
        dataflow.bridges,
        dataflow.joined_nodes,
        dataflow.guessed_nodes,
    )
