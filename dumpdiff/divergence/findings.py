"""From states to findings: the places where the runs part, ranked, and said so that a person can act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..model.dtypes import UNIT_ROUNDOFF, is_floating, unit_roundoff
from ..model.formatting import format_number
from ..model.finding import Finding, Kind
from ..model.trace import PHASES
from .constants import is_constant, is_immediate
from .joint_graph import JointGraph
from .locations import Location, build_location
from .states import INTRODUCED, States

#: They explain everything after them; the rest by place.
_FIRST: Mapping[Kind, int] = {"input": 0, "parameter": 1, "constant": 1}
_NAMED = 24  # ops of a region that are named
_MEASURES = {
    "relative_l2": "relative L2",
    "statistics": "statistics differ by",
    "mismatches": "share of elements",
}
_COPIED = (
    "error",
    "relative_l2",
    "cosine",
    "max_absolute",
    "max_relative",
    "beyond",
    "nonfinite_mismatch",
    "rounded_error",
    "spread",
)


def build_findings(
    graph: JointGraph,
    states: States,
    scopes_t: list[str],
    scopes_r: list[str],
    first: tuple[Finding, ...] = (),
) -> tuple[Finding, ...]:
    """Every introduced divergence, ranked: ``first``, inputs, parameters, ops by phase and dataflow."""
    order = {node: position for position, node in enumerate(graph.order)}
    places = [
        build_location(graph, states, node, scopes_t, scopes_r)
        for node in np.flatnonzero(
            states.state[: len(graph.comparison.pairs)] == INTRODUCED
        ).tolist()
    ]
    drafts = [(classify_kind(graph, at), at) for at in places]
    drafts.sort(key=lambda d: (_FIRST.get(d[0], 2), PHASES.index(d[1].phase), order[d[1].node]))
    made = [
        _finding(rank, kind, at, graph, states)
        for rank, (kind, at) in enumerate(drafts, 1 + len(first))
    ]
    return (*(replace(finding, rank=rank) for rank, finding in enumerate(first, 1)), *made)


def classify_kind(graph: JointGraph, at: Location) -> Kind:
    """What sort of divergence a place is; see result.Kind."""
    if graph.comparison.pairs["nonfinite_mismatch"].iat[at.node] > 0:
        return "nonfinite"
    if at.target.is_graph_input and at.reference.is_graph_input:
        if not _is_held(at):
            return "input"
        alignment = graph.comparison.alignment
        return (
            "constant" if is_constant(at, (alignment.target_kinds, alignment.reference_kinds)) else "parameter"
        )
    if _coarser_type(graph, at):
        return "dtype"
    if find_missing_kinds(at):
        return "missing"
    return "region" if at.unpaired_nodes else "introduced"


def find_missing_kinds(at: Location) -> tuple[str, ...]:
    """Operator kinds that the reference alone has since the last agreement, if the target has none of its own."""
    ours, theirs = (
        Counter(k for op, k in zip(s.ops, s.kinds, strict=True) if not s.flow.is_layout[op])
        for s in (at.target, at.reference)
    )
    return tuple((theirs - ours).elements()) if at.unpaired_nodes and ours and not ours - theirs else ()


def _is_held(at: Location) -> bool:
    """The model holds it: it has a parameter's name, is a constant of the graph, or floats, nobody's first input."""
    if at.target.parameter or at.reference.parameter:
        return True
    floating = is_floating(str(at.reference.flow.list_column("dtype")[at.reference.value]))
    return floating and (
        is_immediate(at.target) or is_immediate(at.reference) or "input.0" not in at.reference.slots
    )


def _coarser_type(graph: JointGraph, at: Location) -> str:
    """The dtype that one side alone computed in on the way here, if its rounding explains the error."""
    worst = []
    for flow, class_of in (
        (at.target.flow, graph.target_classes),
        (at.reference.flow, graph.reference_classes),
    ):
        values = [int(class_of[n]) for n in (*at.unpaired_nodes, at.node) if class_of[n] >= 0]
        dtypes = [d for v in values if (d := str(flow.list_column("dtype")[v])) in UNIT_ROUNDOFF]
        worst.append(max(dtypes, key=unit_roundoff, default=""))
    units = [unit_roundoff(dtype) if dtype else 0.0 for dtype in worst]
    coarse = int(np.argmax(units))
    explained = float(graph.comparison.pairs["error"].iat[at.node]) <= 8 * units[coarse]
    return worst[coarse] if units[0] != units[1] and explained else ""


def _finding(rank: int, kind: Kind, at: Location, graph: JointGraph, states: States) -> Finding:
    row = graph.comparison.pairs.iloc[at.node]
    above = states.ancestry[at.node]
    metrics = {name: float(row[name]) for name in _COPIED if np.isfinite(row[name])}
    if np.isfinite(above.worst_agreeing_error):
        metrics["input_error"] = float(above.worst_agreeing_error)
    if (ratio := _norm_ratio(at)) is not None:
        metrics["norm_ratio"] = ratio
    if (again := states.recomputations.get(at.node)) is not None:
        exactness = {"float64_ratio": again.ratio, "amplification": again.amplification}
        metrics |= {name: figure for name, figure in exactness.items() if np.isfinite(figure)}
    scalars = _scalars(graph, at)
    return Finding(
        rank=rank,
        kind=kind,
        phase=at.phase,
        scope=at.scope,
        title=_title(kind, at, graph, states, scalars),
        target_ops=at.target.names[-_NAMED:],
        reference_ops=at.reference.names[-_NAMED:],
        slots=((at.target.slot, at.reference.slot),),
        metrics=metrics,
        tolerance=float(row["tolerance"]),
        confidence=_confidence(graph, states, at.node),
        evidence=_evidence(kind, at, graph, states, scalars),
        source={
            role: s.source
            for role, s in (("target", at.target), ("reference", at.reference))
            if s.source
        },
    )


def _title(kind: Kind, at: Location, graph: JointGraph, states: States, scalars: list[str]) -> str:
    row = graph.comparison.pairs.iloc[at.node]
    ours, theirs = (
        side.names[-1] if side.names else "nothing" for side in (at.target, at.reference)
    )
    amount = f"{_MEASURES.get(str(row['metric']), 'error')} {format_number(float(row['error']))}"
    if kind in ("parameter", "constant"):
        name = at.target.parameter or at.reference.parameter
        unnamed = {"parameter": "a parameter without a name", "constant": "a constant table"}
        what = f"parameter {name}" if name else unnamed[kind]
        return f"{what} differs, read by {ours} vs {theirs}: {amount}"
    if kind == "input":
        return f"an input of {ours} vs {theirs} differs: {amount}"
    given = states.ancestry[at.node].worst_agreeing_error
    agree = f", inputs agree to {format_number(given)}" if np.isfinite(given) else ""
    operator = (at.target.kinds or at.reference.kinds)[-1]
    where = (
        f"{at.scope}, {operator} ({ours}) vs {theirs}"
        if at.scope
        else f"{operator} ({ours}) vs {theirs}"
    )
    if kind == "nonfinite":
        wrong = int(row["nonfinite_mismatch"])
        return f"{where}: {wrong} elements are NaN, Inf or masked on one side only{agree}"
    said = [f"{where}: {amount}{agree}", *scalars]
    if kind in ("region", "missing") and len(at.target.ops) + len(at.reference.ops) > 2:
        first_t, first_r = (
            at.target.names[:1] or ("nothing",),
            at.reference.names[:1] or ("nothing",),
        )
        said.append(f"somewhere from {first_t[0]} vs {first_r[0]} on")
    if kind == "missing":
        said.append(f"only the reference has {', '.join(find_missing_kinds(at))}")
    if kind == "dtype":
        said.append(f"one side computes in {_coarser_type(graph, at)}")
    return "; ".join(said)


def _evidence(
    kind: Kind, at: Location, graph: JointGraph, states: States, scalars: list[str]
) -> tuple[str, ...]:
    row, above = graph.comparison.pairs.iloc[at.node], states.ancestry[at.node]
    said = [f"paired by {row['evidence']}"]
    if row["layout"] not in ("same", "reshape"):
        said.append(f"layout {row['layout']}")
    if above.ancestors:
        worst = format_number(above.worst_agreeing_error)
        said.append(
            f"the {len(above.ancestors)} nearest values it was computed from agree, at worst to {worst}"
        )
    if at.unpaired_nodes:
        alone = sum(graph.target_classes[n] >= 0 for n in at.unpaired_nodes)
        said.append(
            f"in between {alone} values of the target alone, {len(at.unpaired_nodes) - alone} of the reference alone"
        )
    ratio = _norm_ratio(at)
    if ratio is not None and abs(ratio - 1) > 1e-4:
        said.append(f"norm is {ratio:.6g} times the reference's")
    if kind == "missing":
        said.append(f"only the reference has {', '.join(find_missing_kinds(at))}")
    if np.isfinite(row["rounded_error"]):
        said.append(
            f"after rounding both sides to the narrower type: {format_number(float(row['rounded_error']))}"
        )
    return (*said, *scalars)


def _scalars(graph: JointGraph, at: Location) -> list[str]:
    """Scalar arguments that differ between paired ops of the place."""
    table = graph.comparison.scalars
    here = table[
        table["target_op"].isin(at.target.ops) & table["reference_op"].isin(at.reference.ops)
    ]
    return [
        f"scalar argument {row.target:.6g} against {row.reference:.6g}" for row in here.itertuples()
    ]


def _norm_ratio(at: Location) -> float | None:
    """||t|| / ||r||: says what a cosine cannot."""
    ours, theirs = (float(side.flow.norms[side.value]) for side in (at.target, at.reference))
    return ours / theirs if theirs and np.isfinite(ours / theirs) else None


def _confidence(graph: JointGraph, states: States, node: int) -> float:
    """That of the pair, times the mean of those that agree above it (0.9 where there are none)."""
    confidence = graph.comparison.pairs["confidence"].to_numpy()
    above = [confidence[n] for n in states.ancestry[node].ancestors if n < len(confidence)]
    return round(float(confidence[node]) * (float(np.mean(above)) if above else 0.9), 3)
