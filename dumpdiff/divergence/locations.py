"""A node of the joint graph seen from both sides: its ops, its slots and its place in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..alignment.slot_pairs import SlotPair
from ..graph import Flow
from ..graph.missing_edges import has_missing_producer, is_graph_input
from ..graph.module_paths import find_common_path
from ..model.trace import COMMUNICATION, FORWARD
from ..rulebook.names import split_segments
from .exchanged_weights import find_exchanged_weight_ops
from .joint_graph import GraphSide, JointGraph
from .missing_factors import find_ops_without_factor
from .omitted_gradients import find_omitting_ops
from .rearrangements import (
    find_exchanged_parts,
    find_misread_parts,
    find_other_splits,
    find_rearranging_ops,
)
from .source_regions import find_source_nodes, select_roles
from .states import States
from .uncertain_agreement import find_uncertain_ops
from .unrecorded_origins import list_lost_ops, list_ops_of_parts, list_unread_ops

#: Ops that a finding names, on each side.
MAX_NAMED_OPS = 24


@dataclass(frozen=True)
class SideLocation:
    """What one side recorded at a location."""

    flow: Flow
    value: int  #: class, -1 if this side has none
    #: from the last agreement to the value, in order of execution; the first consumer if no op
    #: produced it
    ops: tuple[int, ...]
    is_graph_input: bool  #: nothing computed it: a parameter, the batch, a buffer
    kinds: tuple[str, ...]  #: canonical kinds of ``ops``
    #: canonical scopes of ``ops``, '' for ``factor_ops``: they are where the sides still agree
    scopes: tuple[str, ...]
    #: names of the parameters that only the other side's ops read here
    unread_parameters: tuple[str, ...] = ()
    #: classes that together are the other side's one tensor, () if it is one of both sides
    parts: tuple[int, ...] = ()
    #: those of ``ops`` that put the numbers of an input in another order
    rearranging_ops: tuple[int, ...] = ()
    #: those of ``ops`` whose results may be in another order, which statistics do not show
    source_ops: tuple[int, ...] = ()
    #: those of ``ops`` that repeat parts or hide scores, which statistics do not tell apart
    uncertain_ops: tuple[int, ...] = ()
    #: those of ``ops`` that may lack a factor which the other side applies later: they agree
    factor_ops: tuple[int, ...] = ()

    @property
    def parameter(self) -> str:
        """Name of the parameter it is, '' if none."""
        return str(self.flow.list_column("parameter")[self.value]) if self.value >= 0 else ""

    @property
    def part_names(self) -> str:
        """Names of the parameters that the value consists of, '' if they have none."""
        names = self.flow.list_column("parameter")
        return ", ".join(filter(None, (str(names[part]) for part in self.parts)))

    @property
    def op_names(self) -> tuple[str, ...]:
        """The dump's own names of ``ops``."""
        return tuple(str(self.flow.trace.ops["name"].iat[op]) for op in self.ops)

    @property
    def named_ops(self) -> tuple[str, ...]:
        """Of ``op_names`` as many as a finding names, in order: the first of each role.

        The layers and steps of a long region repeat, and what is wrong is often a role of its own:
        a sum without the bias that the others have. The first and the last ops follow.
        """
        named_ops = select_roles(self.flow, self.ops, self.kinds, MAX_NAMED_OPS)
        return tuple(str(self.flow.trace.ops["name"].iat[op]) for op in named_ops)

    @property
    def scope(self) -> str:
        """The innermost module that holds all of ``ops`` with a known scope, '' if none is known.

        Where no layer holds them all, it is the scope of the first.
        """
        known_scopes = list(filter(None, self.scopes))
        return find_common_path(known_scopes) or next(iter(known_scopes), "")

    @property
    def printed_scope(self) -> str:
        """The innermost module in the names of all of ``ops``, '' if they have none in common.

        Names of graph mode may be those of another layer: a last resort. The name of an API call
        begins with its kind and names no module.
        """
        kinds = self.flow.trace.ops["kind"]
        module_names = []
        for op, name in zip(self.ops, self.op_names, strict=True):
            is_api_call = name.startswith(f"{kinds.iat[op]}.")
            module_names.append("" if is_api_call else ".".join(split_segments(name)))
        return find_common_path(module_names)

    @property
    def source(self) -> str:
        """The user's line that called the last op with a recorded line, '' if none has one."""
        lines = (str(self.flow.trace.ops["source"].iat[op]) for op in reversed(self.ops))
        return next(filter(None, lines), "")

    @property
    def slot(self) -> str:
        """Slot of the value at the last op that has it, '' if none has."""
        for op in reversed(self.ops):
            for row in self.flow.get_tensor_ids(op).tolist():
                if self.flow.tensor_class[row] == self.value:
                    return str(self.flow.tensors["slot"].iat[row])
        return ""

    @property
    def slots(self) -> frozenset[str]:
        """All slots that hold the value."""
        slots = self.flow.tensors["slot"].to_numpy()
        return frozenset(slots[self.flow.tensor_class == self.value].tolist())


@dataclass(frozen=True)
class Location:
    """A node from both sides, with the unpaired nodes between it and the last agreement."""

    node: int
    phase: str
    target: SideLocation
    reference: SideLocation
    unpaired_nodes: tuple[int, ...]
    omitting_module: str = ""  #: scope of the product whose bias one side omits, '' if none does

    @property
    def scope(self) -> str:
        """Canonical scope: of the parameter, else of the ops since the last agreement.

        The reference's scope is used unless the target's is an enclosing module of it.
        """
        for side in (self.target, self.reference):
            is_parameter = bool(side.parameter) and side.is_graph_input
            if is_parameter:
                module = side.parameter.rpartition(".")[0]
                return side.scope or module
        if self.omitting_module:
            return self.omitting_module
        scope_t, scope_r = self.target.scope, self.reference.scope
        target_encloses = bool(scope_t) and scope_r.startswith(f"{scope_t}.")
        if target_encloses:
            return scope_t
        return scope_r or scope_t or self.reference.printed_scope or self.target.printed_scope

    @property
    def possible_rearrangement(self) -> str:
        """A sentence on ops whose results may be in another order, '' without any."""
        names = self._join_names(self.target.source_ops, self.reference.source_ops)
        if not names:
            return ""
        return (
            f"several ops diverge that read what {names} computes; statistics do not show "
            "the order of its numbers"
        )

    @property
    def uncertain_agreement(self) -> str:
        """A sentence on ops whose agreement statistics do not show, '' without any."""
        names = self._join_names(self.target.uncertain_ops, self.reference.uncertain_ops)
        if not names:
            return ""
        return (
            f"what {names} computes agrees as far as statistics show: not the order of repeated "
            "parts, nor which elements are hidden"
        )

    @property
    def missing_factor(self) -> str:
        """A sentence on the ops that may lack a factor, '' without any."""
        names = self._join_names(self.target.factor_ops, self.reference.factor_ops)
        if not names:
            return ""
        return (
            f"a factor may be missing in {names}: both sides agree before only one of them "
            "applies it"
        )

    @property
    def rearrangement(self) -> str:
        """A clause on the ops that put the numbers of an input in another order, '' without any."""
        names = self._join_names(self.target.rearranging_ops, self.reference.rearranging_ops)
        return f"an input is in another order from {names} on" if names else ""

    def _join_names(self, target_ops: Sequence[int], reference_ops: Sequence[int]) -> str:
        """Return the names of ops of both sides, each once."""
        names_t, names_r = (side.flow.trace.ops["name"] for side in (self.target, self.reference))
        names = [names_t.iat[op] for op in target_ops] + [names_r.iat[op] for op in reference_ops]
        return ", ".join(dict.fromkeys(map(str, names)))


def build_location(
    graph: JointGraph,
    states: States,
    node: int,
    scopes_t: list[str],
    scopes_r: list[str],
    source: int | None = None,
) -> Location:
    """Return the location of a pair; ``scopes_t`` and ``scopes_r`` are the scopes of all ops.

    ``source`` is an agreeing value that may be in another order.
    """
    unpaired_nodes = find_source_nodes(graph, states, node)
    slot_pair = graph.comparison.pairs["slot_pair"].iat[node]
    slot_ops = None if slot_pair is None else (slot_pair.target_op, slot_pair.reference_op)
    group = graph.comparison.pairs["group"].iat[node]
    parts = ((), ()) if group is None else (group.target, group.reference)
    scopes = (scopes_t, scopes_r)
    sides = []
    omitting_module = ""
    computing_ops = [
        _list_ops(own, states, node, unpaired_nodes, parts[side], graph.children[node])
        for side, own in enumerate(graph.sides)
    ]
    lost_ops = [
        list_lost_ops(own, other, states, (*unpaired_nodes, node), ops)
        for own, other, ops in zip(graph.sides, graph.sides[::-1], computing_ops[::-1], strict=True)
    ]
    for ops, lost in zip(computing_ops, lost_ops, strict=True):
        ops[:] = sorted({*ops, *lost})
    for side, preparing_ops in enumerate(_list_preparing_ops(graph, computing_ops)):
        computing_ops[side] = sorted({*computing_ops[side], *preparing_ops})
    ancestors, own_ops = states.ancestry[node].ancestors, (computing_ops[0], computing_ops[1])
    rearranging_ops = find_rearranging_ops(graph, ancestors, own_ops)
    exchanging_ops = find_exchanged_parts(graph, ancestors, own_ops)
    splitting_ops = find_other_splits(graph, ancestors, unpaired_nodes)
    for side, found_ops in enumerate(rearranging_ops):
        found_ops.extend((*exchanging_ops[side], *splitting_ops[side]))
    cutting_ops: tuple[list[int], list[int]] = ([], [])
    if graph.phase[node] == FORWARD:
        cutting_ops = find_misread_parts(graph, ancestors, own_ops)
    omitting_ops = find_omitting_ops(graph, states, node, unpaired_nodes)
    weight_ops = find_exchanged_weight_ops(graph, own_ops)
    factor_ops = find_ops_without_factor(graph, states, unpaired_nodes, own_ops)
    uncertain_ops = find_uncertain_ops(graph, node, own_ops)
    moved_nodes = _find_values_before_move(graph, unpaired_nodes, computing_ops)
    source_ops = [
        _list_source_ops(own, source, ops)
        for own, ops in zip(graph.sides, computing_ops, strict=True)
    ]
    for side, own in enumerate(graph.sides):
        ops = sorted(
            {
                *rearranging_ops[side],
                *cutting_ops[side],
                *omitting_ops[side],
                *weight_ops[side],
                *factor_ops[side],
                *uncertain_ops[side],
                *source_ops[side],
                *computing_ops[side],
                *(own.find_producer(moved) for moved in moved_nodes),
            }
            - {-1}
        )
        preceding_op = _find_op_before_omission(graph, unpaired_nodes, omitting_side=side)
        if preceding_op is not None:
            ops = [preceding_op, *ops]
            omitting_module = scopes[side][preceding_op]
        if slot_pair is not None:
            ops = _list_slot_ops(own, slot_pair, side)
        value = int(own.classes[node])
        unread_parameters = _list_unread_parameters(graph, (*unpaired_nodes, node), side)
        sides.append(
            SideLocation(
                own.flow,
                value,
                tuple(ops),
                value >= 0 and is_graph_input(own.flow, value),
                tuple(own.kinds[op] for op in ops),
                tuple("" if op in factor_ops[side] else scopes[side][op] for op in ops),
                unread_parameters,
                parts[side] if len(parts[side]) > 1 else (),
                tuple(rearranging_ops[side]) if slot_ops is None else (),
                source_ops[side] if slot_ops is None else (),
                tuple(uncertain_ops[side]) if slot_ops is None else (),
                tuple(factor_ops[side]) if slot_ops is None else (),
            )
        )
    phase = str(graph.phase[node])
    return Location(node, phase, sides[0], sides[1], unpaired_nodes, omitting_module)


def _list_source_ops(side: GraphSide, source: int | None, ops: Sequence[int]) -> tuple[int, ...]:
    """Return the op of one side that computed a source, if it ran before the last of some ops.

    Only one side may read the source here. The other one may compute it later, for something else.
    """
    producer = -1 if source is None else side.find_producer(source)
    return (producer,) if 0 <= producer < max(ops, default=-1) else ()


def _list_ops(
    side: GraphSide,
    states: States,
    node: int,
    unpaired_nodes: tuple[int, ...],
    parts: tuple[int, ...],
    node_children: Sequence[int],
) -> list[int]:
    """Return the ops of one side that produced a node and the unpaired nodes before it.

    In place of an op that was not recorded it has the first consumer of the node's value, or the
    collective that gives back what it reads, as in a run that was merged from its ranks. ``parts``
    are the values of the node where they are several: the parts of a fused tensor. Before a module
    that returns what no recorded op computed come the ops in it whose results do not agree, and
    which no recorded op reads: it was computed from these. Before a value that an op without a
    record joined come the ops of its parts, where these have no partner.
    """
    flow, classes = side.flow, side.classes
    own_values = [value for value in parts or (int(classes[node]),) if value >= 0]
    values = [int(classes[n]) for n in unpaired_nodes if classes[n] >= 0]
    ops = {int(flow.producers[value]) for value in (*values, *own_values)}
    for value in own_values:
        if flow.producers[value] < 0:
            ops.update(_list_first_consumers(flow, value))
            ops.update(_find_reader_of_part(side, node_children, value))
    for value in values:
        if flow.producers[value] < 0:
            first_consumers = flow.consumers[value][:1]
            ops.update(op for op in first_consumers if flow.phases[op] == COMMUNICATION)
    ops.discard(-1)
    levels = flow.trace.ops["level"]
    modules = {op for op in ops if levels.iat[op] == "module" and flow.phases[op] == FORWARD}
    if modules:
        ops |= list_unread_ops(side, states, flow.list_ops_inside(modules))
    for value in own_values:
        if flow.producers[value] < 0 and has_missing_producer(flow, value):
            ops |= list_ops_of_parts(side, states, value)
    return sorted(ops)


def _list_preparing_ops(
    graph: JointGraph, computing_ops: Sequence[Sequence[int]]
) -> tuple[set[int], set[int]]:
    """Return the ops of each side whose results only ops read that the other side does not have.

    If one side subtracts the mean and the other does not, computing the mean is a part of that,
    although some value of the other side has its numbers.
    """
    kinds = [
        Counter(own.kinds[op] for op in ops if own.flow.phases[op] == FORWARD)
        for own, ops in zip(graph.sides, computing_ops, strict=True)
    ]
    op_pairs = graph.comparison.alignment.ops
    columns = (op_pairs["target"].to_numpy(), op_pairs["reference"].to_numpy())
    preparing_ops: tuple[set[int], set[int]] = (set(), set())
    for side, own in enumerate(graph.sides):
        other = graph.sides[1 - side]
        surplus_kinds = kinds[side] - kinds[1 - side]
        if not surplus_kinds or kinds[1 - side] - kinds[side]:
            continue
        surplus_ops = {op for op in computing_ops[side] if own.kinds[op] in surplus_kinds}
        for value in {value for op in surplus_ops for value in own.flow.operands[op]}:
            producer = int(own.flow.producers[value])
            readers = {op for op in own.flow.users[value] if own.flow.phases[op] == FORWARD}
            if producer < 0 or not readers <= surplus_ops:
                continue
            partners = columns[1 - side][columns[side] == producer].tolist()
            if not any(other.kinds[partner] == own.kinds[producer] for partner in partners):
                preparing_ops[side].add(producer)
    return preparing_ops


def _find_reader_of_part(side: GraphSide, children: Sequence[int], value: int) -> Sequence[int]:
    """Return the first op that reads what an op without a record cut out of a value.

    Nothing if an op reads the value itself before that. Rows that are looked up of positions are
    such a part.
    """
    flow = side.flow
    parts = [int(side.classes[child]) for child in children]
    readers = [
        flow.consumers[part][0]
        for part in parts
        if part >= 0 and flow.producers[part] < 0 and flow.consumers[part]
    ]
    first_consumer = min(flow.consumers[value], default=-1)
    return [min(readers)] if readers and min(readers) < first_consumer else []


def _list_first_consumers(flow: Flow, value: int) -> Sequence[int]:
    """Return the first op that reads a value; if it is a module call, the first op in it, too."""
    consumers = flow.consumers[value]
    if not consumers or not flow.is_module[consumers[0]]:
        return consumers[:1]
    module = consumers[0]
    inner_ops = set(flow.list_ops_inside([module, int(flow.calls[module])]))
    inner_consumers = [op for op in consumers if not inner_ops.isdisjoint((op, flow.calls[op]))]
    return [module, *inner_consumers[:1]]


def _find_op_before_omission(
    graph: JointGraph, unpaired_nodes: tuple[int, ...], omitting_side: int
) -> int | None:
    """Return the op after which this side omits the addition of a parameter, None if it does not.

    A product without its bias agrees with the other side's product. What is wrong is that no
    addition follows.
    """
    own, other = graph.sides[omitting_side], graph.sides[1 - omitting_side]
    own_values = [int(own.classes[node]) for node in unpaired_nodes if own.classes[node] >= 0]
    if not unpaired_nodes or any(own.flow.producers[value] >= 0 for value in own_values):
        return None
    other_producers = [other.find_producer(node) for node in unpaired_nodes]
    computing_producers = [producer for producer in other_producers if producer >= 0]
    if not computing_producers:
        return None
    other_producer = computing_producers[0]
    input_nodes = [int(other.nodes[value]) for value in other.flow.reads[other_producer]]
    omitted_nodes, remaining_values = [], []
    for node in input_nodes:
        is_parameter = bool(other.flow.list_column("parameter")[other.classes[node]])
        if is_parameter and not _is_computed_with(own.flow, int(own.classes[node])):
            omitted_nodes.append(node)
        elif own.classes[node] >= 0:
            remaining_values.append(int(own.classes[node]))
    if len(input_nodes) != 2 or len(omitted_nodes) != 1 or len(remaining_values) != 1:
        return None
    producer = int(own.flow.producers[remaining_values[0]])
    return producer if producer >= 0 else None


def _find_values_before_move(
    graph: JointGraph, unpaired_nodes: tuple[int, ...], computing_ops: Sequence[Sequence[int]]
) -> list[int]:
    """Return the values to which only one side adds a parameter at once.

    The other side adds it to another value here: a bias after an activation, not before it. What is
    wrong is that its op does not add it.
    """
    nodes = []
    for own, other, ops in zip(graph.sides, graph.sides[::-1], computing_ops, strict=True):
        names = other.flow.list_column("parameter")
        for unpaired in unpaired_nodes:
            adding_op = other.find_producer(unpaired)
            if adding_op < 0 or other.kinds[adding_op] != "add":
                continue
            addends = sorted(other.flow.reads[adding_op], key=lambda value: bool(names[value]))
            if [bool(names[value]) for value in addends] != [False, True]:
                continue
            node = int(other.nodes[addends[0]])
            value, parameter = (int(own.classes[other.nodes[addend]]) for addend in addends)
            readers = [op for op in ops if parameter in own.flow.reads[op]]
            if value >= 0 and readers and not any(value in own.flow.reads[op] for op in readers):
                nodes.append(node)
    return nodes


def _list_slot_ops(side: GraphSide, pair: SlotPair, number: int) -> list[int]:
    """Return the op of a slot of one side, after the op that computed what it returns."""
    op = (pair.target_op, pair.reference_op)[number]
    value = (pair.target, pair.reference)[number]
    producer = int(side.flow.producers[value])
    return [producer, op] if pair.slot_kind == "output" and producer not in (-1, op) else [op]


def _list_unread_parameters(
    graph: JointGraph, nodes: tuple[int, ...], omitting_side: int
) -> tuple[str, ...]:
    """Return the names of the parameters that only the other side's ops read at a location."""
    own, other = graph.sides[omitting_side], graph.sides[1 - omitting_side]
    names = other.flow.list_column("parameter")
    producers = {
        int(other.flow.producers[other.classes[n]]) for n in nodes if other.classes[n] >= 0
    }
    unread_parameters: dict[str, None] = {}
    for op in sorted(producers - {-1}):
        for value in other.flow.operands[op]:
            node = int(other.nodes[value])
            if names[value] and not _is_computed_with(own.flow, int(own.classes[node])):
                unread_parameters[names[value]] = None
    return tuple(unread_parameters)


def _is_computed_with(flow: Flow, value: int) -> bool:
    """Return whether an op reads a value, not only the module call that owns it.

    A module call inside which no op was recorded is one.
    """
    if value < 0:
        return False
    ops = flow.trace.ops
    return any(
        ops["level"].iat[op] == "op" or not (ops["parent"] == op).any()
        for op in flow.consumers[value]
    )
