"""The drawing of one finding: its ops, what they were computed from and what follows, of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph import Flow
from ..graph.missing_edges import is_given
from ..model.finding_context import Edge, Neighbourhood, Node
from ..model.result import Finding, Result
from .dataflow import Link
from .selection import Flows, Partners, Unit, beside, levels, nearest
from .value_states import Judged


@dataclass(frozen=True)
class Sides:
    """What is known of the target and of the reference, by position 0 and 1; made once for all findings."""

    flows: Flows
    judged: tuple[Judged, Judged]
    partners: Partners
    ops_by_name: tuple[Mapping[str, int], Mapping[str, int]]
    scopes: tuple[Mapping[str, str], Mapping[str, str]]  #: the dump's op name -> canonical scope


def neighbourhoods(
    sides: Sides, finding: Finding, values: tuple[int, int] | None
) -> tuple[Neighbourhood, Neighbourhood]:
    """The dataflow around a finding, of the target and of the reference.

    ``values`` are the two that it is about, if known: one that no op made, a parameter say, is drawn like an op.
    """
    ends = tuple(
        next((known[name] for name in reversed(names) if name in known), -1)
        for known, names in zip(
            sides.ops_by_name, (finding.target_ops, finding.reference_ops), strict=True
        )
    )
    flows, makers = (
        list(sides.flows),
        list(ends),
    )  # an op, or what stands for the making of the value
    for side, value in enumerate(values or ()):
        if not flows[side].is_made(value):
            flows[side], makers[side] = flows[side].with_given(value)
    sides = replace(sides, flows=(flows[0], flows[1]))
    end: Unit = (makers[0], makers[1])
    partners = _together(sides.partners, end)
    readers = [
        beside(partners, side, ends[side])
        for side in (0, 1)
        if ends[side] not in (-1, makers[side])
    ]
    units, omitted = nearest(sides.flows, partners, [end, *readers] if max(end) >= 0 else [])
    level = levels(units, sides.flows)
    ordered = sorted(level, key=lambda unit: (level[unit], unit[1] if unit[1] >= 0 else unit[0]))
    first, second = (_side(sides, side, ordered, level, omitted[side]) for side in (0, 1))
    return first, second


def _together(partners: Partners, end: Unit) -> Partners:
    """The partners, with the two ops of the finding as one another's, whoever they were paired with."""
    if min(end) < 0:
        return partners
    changed = tuple(
        {op: other for op, other in table.items() if op != end[side] and other != end[1 - side]}
        for side, table in enumerate(partners)
    )
    return {**changed[0], end[0]: end[1]}, {**changed[1], end[1]: end[0]}


def _side(
    sides: Sides, side: int, units: Sequence[Unit], level: Mapping[Unit, int], omitted: int
) -> Neighbourhood:
    drawn = [[unit[s] for unit in units if unit[s] >= 0] for s in (0, 1)]
    position = [{op: place for place, op in enumerate(ops)} for ops in drawn]
    mine = [unit for unit in units if unit[side] >= 0]
    nodes = tuple(
        _node(sides, side, unit[side], level[unit], position[1 - side].get(unit[1 - side], -1))
        for unit in mine
    )
    flow, judged = sides.flows[side], sides.judged[side]
    edges = tuple(
        _edge(flow.flow, judged, link, position[side])
        for op in drawn[side]
        for link in flow.above.get(op, ())
        if link.maker in position[side]
    )
    return Neighbourhood(nodes, edges, omitted)


def _node(sides: Sides, side: int, op: int, level: int, partner: int) -> Node:
    flow = sides.flows[side]
    ops = flow.flow.trace.ops
    state, error = sides.judged[side].worst(flow.results(op))
    if (value := flow.given(op)) >= 0:
        name, kind = _called(flow.flow, value)
        return Node(name, kind, "", state, level, partner, error, source="", stack="")
    name, forward = str(ops["name"].iat[op]), int(ops["forward"].iat[op])
    caller = (
        forward if forward >= 0 and not ops["stack"].iat[op] else op
    )  # a gradient has the line of its forward call
    return Node(
        op=name,
        kind=str(ops["kind"].iat[op]),
        scope=sides.scopes[side].get(name, ""),
        state=state,
        level=level,
        partner=partner,
        error=error,
        source=str(ops["source"].iat[caller]),
        stack=str(ops["stack"].iat[caller]),
    )


def _called(flow: Flow, value: int) -> tuple[str, str]:
    """(name, kind) of what stands for the making of a value."""
    if parameter := str(flow.column("parameter")[value]):
        return parameter, "Parameter"
    return (
        ("an input", "Input")
        if is_given(flow, value)
        else ("whatever made this value", "Unrecorded")
    )


def _edge(flow: Flow, judged: Judged, link: Link, position: Mapping[int, int]) -> Edge:
    slot, row = "", int(flow.column("tensor")[link.value])
    if link.reader < len(flow.phases):
        rows = flow.tensors_of(link.reader)
        reads = rows[
            (flow.tensor_class[rows] == link.value)
            & (flow.tensors["role"].to_numpy()[rows] != "output")
        ]
        row = int(reads[0])
        slot = str(flow.tensors["slot"].iat[row])
    shape = flow.tensors["shape"].iat[row]
    state, error = judged.worst((link.value,))
    return Edge(
        maker=position[link.maker],
        reader=position[link.reader],
        slot=slot,
        shape="" if shape is None else " x ".join(map(str, shape)) or "scalar",
        error=error,
        state=state,
    )


def scopes_of(result: Result) -> tuple[dict[str, str], dict[str, str]]:
    """Per side the canonical scope of each op that a result's tables name."""
    both = []
    for side in ("target", "reference"):
        alone = result.unmatched[result.unmatched["side"] == side]
        table = dict(zip(alone["op"], alone["scope"], strict=True))
        table.update(zip(result.pairs[f"{side}_op"], result.pairs["scope"], strict=True))
        both.append(table)
    return both[0], both[1]
