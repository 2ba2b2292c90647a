"""A node of the joined graph from both sides: which ops made it, which slots hold it, where in the model it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Ints
from .joint_graph import JointGraph
from .states import States


@dataclass(frozen=True)
class SideLocation:
    """What one side recorded about a place."""

    flow: Flow
    value: int  #: class, -1 if this side has none
    #: from the last agreement to the value, in order of execution; its first reader if nobody made it
    ops: tuple[int, ...]
    is_graph_input: bool  #: nothing computed it: a parameter, the batch, a buffer
    kinds: tuple[str, ...]  #: canonical kinds of ``ops``
    scopes: tuple[str, ...]  #: canonical scopes of ``ops``

    @property
    def parameter(self) -> str:
        """Name of the parameter it is, '' if none."""
        return str(self.flow.list_column("parameter")[self.value]) if self.value >= 0 else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The dump's own names of ``ops``."""
        return tuple(str(self.flow.trace.ops["name"].iat[op]) for op in self.ops)

    @property
    def source(self) -> str:
        """The user's line that called the last op that has one."""
        lines = (str(self.flow.trace.ops["source"].iat[op]) for op in reversed(self.ops))
        return next((line for line in lines if line), "")

    @property
    def slot(self) -> str:
        """Where the last op has the value."""
        for op in reversed(self.ops):
            for row in self.flow.get_tensor_ids(op).tolist():
                if self.flow.tensor_class[row] == self.value:
                    return str(self.flow.tensors["slot"].iat[row])
        return ""

    @property
    def slots(self) -> frozenset[str]:
        """All slots that hold the value."""
        return frozenset(
            self.flow.tensors["slot"].to_numpy()[self.flow.tensor_class == self.value].tolist()
        )


@dataclass(frozen=True)
class Location:
    """A node, with both sides of it and what lies between it and the last agreement."""

    node: int
    phase: str
    target: SideLocation
    reference: SideLocation
    unpaired_nodes: tuple[int, ...]  #: nodes that only one side has

    @property
    def scope(self) -> str:
        """Canonical scope: the parameter's, else of the first op after the last agreement, as the reference has it."""
        for side in (self.target, self.reference):
            if side.parameter and side.is_graph_input:
                return next(
                    (scope for scope in side.scopes if scope), side.parameter.rpartition(".")[0]
                )
        ours, theirs = (
            next(filter(None, side.scopes), "") for side in (self.target, self.reference)
        )
        return ours if ours and theirs.startswith(f"{ours}.") else theirs or ours


def build_location(
    graph: JointGraph, states: States, node: int, scopes_t: list[str], scopes_r: list[str]
) -> Location:
    """Look at a node that has a partner."""
    alignment = graph.comparison.alignment
    between = states.ancestry[node].unpaired_nodes
    sides = [
        _side(flow, class_of, kinds, scopes, node, between)
        for flow, class_of, kinds, scopes in (
            (alignment.target, graph.target_classes, alignment.target_kinds, scopes_t),
            (alignment.reference, graph.reference_classes, alignment.reference_kinds, scopes_r),
        )
    ]
    for one, other in ((0, 1), (1, 0)):
        if before := _left_out(graph, between, sides[one].flow, sides[other].flow, one):
            sides[one] = replace(
                sides[one],
                ops=(before, *sides[one].ops),
                kinds=((alignment.target_kinds, alignment.reference_kinds)[one][before], *sides[one].kinds),
                scopes=((scopes_t, scopes_r)[one][before], *sides[one].scopes),
            )
    return Location(node, str(graph.phase[node]), sides[0], sides[1], between)


def _left_out(graph: JointGraph, between: tuple[int, ...], flow: Flow, other: Flow, one: int) -> int:
    """The op after which this side leaves out to add a parameter that the other side adds; 0 if none does.

    A product without its bias agrees with the other side's product: what is wrong with it is that nothing follows.
    """
    here, there = (graph.target_classes, graph.reference_classes)[:: 1 - 2 * one]
    if not between or any(here[node] >= 0 and flow.producers[here[node]] >= 0 for node in between):
        return 0
    first = int(there[between[0]])
    maker = int(other.producers[first])
    nodes = (
        [int((graph.reference_nodes, graph.target_nodes)[one][value]) for value in other.reads[maker]]
        if maker >= 0
        else []
    )
    leaves = [
        n
        for n in nodes
        if other.producers[there[n]] < 0 and not _is_computed_with(flow, int(here[n]))
    ]
    given = [n for n in nodes if n not in leaves and here[n] >= 0]
    if len(nodes) != 2 or len(leaves) != 1 or len(given) != 1:
        return 0
    return max(0, int(flow.producers[here[given[0]]]))


def _is_computed_with(flow: Flow, value: int) -> bool:
    """Some op reads a value, not just the module call that owns it."""
    return value >= 0 and any(flow.trace.ops["level"].iat[op] == "op" for op in flow.consumers[value])


def _side(
    flow: Flow,
    class_of: Ints,
    kinds: Sequence[str],
    scopes: Sequence[str],
    node: int,
    between: tuple[int, ...],
) -> SideLocation:
    value = int(class_of[node])
    values = [int(class_of[n]) for n in (*between, node) if class_of[n] >= 0]
    ops = sorted({int(flow.producers[v]) for v in values} - {-1})
    if not ops and value >= 0:
        ops = flow.consumers[value][:1]
    given = value >= 0 and is_graph_input(flow, value)
    return SideLocation(
        flow,
        value,
        tuple(ops),
        given,
        tuple(kinds[op] for op in ops),
        tuple(scopes[op] for op in ops),
    )
