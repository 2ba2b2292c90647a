"""The dataflow around one finding: its ops, their inputs and their consumers, on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.finding import Finding
from ..model.finding_context import Edge, Neighborhood, Node
from ..model.result import Result
from .dataflow import Link
from .selection import Flows, Partners, Unit, assign_levels, make_unit, select_nearest
from .value_states import ValueStates


@dataclass(frozen=True)
class ComparedSides:
    """What is known of target (0) and reference (1); built once for all findings."""

    flows: Flows
    value_states: tuple[ValueStates, ValueStates]
    partners: Partners
    ops_by_name: tuple[Mapping[str, int], Mapping[str, int]]
    scopes: tuple[Mapping[str, str], Mapping[str, str]]  #: the dump's op name -> canonical scope


def build_neighborhoods(
    sides: ComparedSides, finding: Finding, values: tuple[int, int] | None
) -> tuple[Neighborhood, Neighborhood]:
    """Return the dataflow around a finding, of the target and of the reference.

    ``values`` are the two value classes of the finding, if known. A value that no op produced, for
    example a parameter, is drawn like an op.
    """
    finding_ops = (
        _find_last_op(sides.ops_by_name[0], finding.target_ops),
        _find_last_op(sides.ops_by_name[1], finding.reference_ops),
    )
    flows = list(sides.flows)
    producers = list(finding_ops)  # per side an op, or the stand-in for a value's producer
    for side, value in enumerate(values or ()):
        if not flows[side].is_produced(value):
            flows[side], producers[side] = flows[side].with_unrecorded_producer(value)
    sides = replace(sides, flows=(flows[0], flows[1]))
    center: Unit = (producers[0], producers[1])
    partners = _pair_finding_ops(sides.partners, center)
    seeds = [center] if max(center) >= 0 else []
    for side, op in enumerate(finding_ops):
        if seeds and op not in (-1, producers[side]):
            seeds.append(make_unit(partners, side, op))
    units, omitted = select_nearest(sides.flows, partners, seeds)
    levels = assign_levels(units, sides.flows)

    def sort_key(unit: Unit) -> tuple[int, int]:
        target_op, reference_op = unit
        return levels[unit], reference_op if reference_op >= 0 else target_op

    ordered_units = sorted(levels, key=sort_key)
    return (
        _build_neighborhood(sides, 0, ordered_units, levels, omitted[0]),
        _build_neighborhood(sides, 1, ordered_units, levels, omitted[1]),
    )


def _find_last_op(ops_by_name: Mapping[str, int], names: Sequence[str]) -> int:
    """Return the last of some named ops that the trace has, -1 if it has none of them."""
    for name in reversed(names):
        if name in ops_by_name:
            return ops_by_name[name]
    return -1


def _pair_finding_ops(partners: Partners, center: Unit) -> Partners:
    """Return the partners with the two ops of the finding paired, and their other pairs removed."""
    if min(center) < 0:
        return partners
    target_op, reference_op = center
    to_reference = _remove_op(partners[0], target_op, reference_op)
    to_target = _remove_op(partners[1], reference_op, target_op)
    return {**to_reference, target_op: reference_op}, {**to_target, reference_op: target_op}


def _remove_op(partners: Mapping[int, int], op: int, partner: int) -> dict[int, int]:
    return {key: value for key, value in partners.items() if key != op and value != partner}


def _build_neighborhood(
    sides: ComparedSides, side: int, units: Sequence[Unit], levels: Mapping[Unit, int], omitted: int
) -> Neighborhood:
    drawn_ops = [unit[side] for unit in units if unit[side] >= 0]
    other_ops = [unit[1 - side] for unit in units if unit[1 - side] >= 0]
    other_positions = {op: position for position, op in enumerate(other_ops)}
    nodes = []
    for unit in units:
        if unit[side] >= 0:
            partner = other_positions.get(unit[1 - side], -1)
            nodes.append(_build_node(sides, side, unit[side], levels[unit], partner))
    edges = _build_edges(sides, side, drawn_ops)
    return Neighborhood(tuple(nodes), tuple(edges), omitted)


def _build_edges(sides: ComparedSides, side: int, drawn_ops: Sequence[int]) -> list[Edge]:
    """Return the edges between the drawn ops; their ends are positions in ``drawn_ops``."""
    positions = {op: position for position, op in enumerate(drawn_ops)}
    flow, states = sides.flows[side], sides.value_states[side]
    edges = []
    for op in drawn_ops:
        links = [link for link in flow.list_inputs(op) if link.producer in positions]
        edges += [_build_edge(flow.flow, states, link, positions) for link in links]
    return edges


def _build_node(sides: ComparedSides, side: int, op: int, level: int, partner: int) -> Node:
    dataflow = sides.flows[side]
    ops = dataflow.flow.trace.ops
    state, error = sides.value_states[side].find_worst(dataflow.list_results(op))
    value = dataflow.get_unrecorded_output(op)
    if value >= 0:
        name, kind = _name_unrecorded_output(dataflow.flow, value)
        return Node(name, kind, "", state, level, partner, error, source="", stack="")
    name, forward_op = str(ops["name"].iat[op]), int(ops["forward"].iat[op])
    called_op = op
    if forward_op >= 0 and not ops["stack"].iat[op]:
        called_op = forward_op  # a gradient has the source line of its forward call
    return Node(
        op=name,
        kind=str(ops["kind"].iat[op]),
        scope=sides.scopes[side].get(name, ""),
        state=state,
        level=level,
        partner=partner,
        error=error,
        source=str(ops["source"].iat[called_op]),
        stack=str(ops["stack"].iat[called_op]),
    )


def _name_unrecorded_output(flow: Flow, value: int) -> tuple[str, str]:
    """Return (name, kind) of the node for a value that no recorded op produced."""
    parameter = str(flow.list_column("parameter")[value])
    if parameter:
        return parameter, "Parameter"
    if is_graph_input(flow, value):
        return "an input", "Input"
    return "an op that was not recorded", "Unrecorded"


def _build_edge(flow: Flow, states: ValueStates, link: Link, positions: Mapping[int, int]) -> Edge:
    slot, row = "", int(flow.list_column("tensor")[link.value])
    if link.consumer < len(flow.phases):
        rows = flow.get_tensor_ids(link.consumer)
        is_input = flow.tensors["slot_kind"].to_numpy()[rows] != "output"
        row = int(rows[(flow.tensor_class[rows] == link.value) & is_input][0])
        slot = str(flow.tensors["slot"].iat[row])
    state, error = states.find_worst((link.value,))
    return Edge(
        producer=positions[link.producer],
        consumer=positions[link.consumer],
        slot=slot,
        shape=_format_shape(flow.tensors["shape"].iat[row]),
        error=error,
        state=state,
    )


def _format_shape(shape: Sequence[int] | None) -> str:
    """Format a shape as '2 x 16'; a scalar's is 'scalar', an unknown one ''."""
    if shape is None:
        return ""
    return " x ".join(map(str, shape)) or "scalar"


def map_scopes(result: Result) -> tuple[dict[str, str], dict[str, str]]:
    """Return per side the canonical scope of each op that a result's tables name."""
    return _map_side_scopes(result, "target"), _map_side_scopes(result, "reference")


def _map_side_scopes(result: Result, side: str) -> dict[str, str]:
    unmatched = result.unmatched[result.unmatched["side"] == side]
    scopes = dict(zip(unmatched["op"], unmatched["scope"], strict=True))
    scopes.update(zip(result.pairs[f"{side}_op"], result.pairs["scope"], strict=True))
    return scopes
