"""The sentences of a finding: its title, and the facts that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..comparison.mask_fill import STATISTICS_SET_ASIDE
from ..model.finding import Kind
from ..model.formatting import format_names, format_number
from ..model.sketches import SKETCH
from .ancestries import MAX_REGION_END
from .finding_kinds import count_missing_kinds, find_coarser_dtype
from .joint_graph import JointGraph
from .locations import Location
from .states import States

_MAX_NAMES = 4  #: of further places, or of parameters, that a sentence lists
#: Relative difference of the norms from which on it is mentioned.
_NORM_DIFFERENCE = 1e-4
#: Evidence of an isolated difference.
_NO_CONSEQUENCE = (
    "no other value shows this difference: a record holds other numbers than the run computed "
    "with, or what follows removes it"
)
_METRIC_NAMES = {
    "relative_l2": "relative L2",
    "statistics": "statistics differ by",
    "mismatches": "share of elements",
}


def format_title(
    kind: Kind, location: Location, graph: JointGraph, states: States, scalars: list[str]
) -> str:
    """Return one line that says what differs, where and by how much."""
    row = graph.comparison.pairs.iloc[location.node]
    target, reference = location.target, location.reference
    op_t = target.op_names[-1] if target.op_names else "nothing"
    op_r = reference.op_names[-1] if reference.op_names else "nothing"
    amount = _format_amount(row)
    if kind in ("parameter", "constant"):
        name = target.parameter or reference.parameter
        subject = "a parameter without a name" if kind == "parameter" else "a constant table"
        if name:
            part_names = target.part_names or reference.part_names
            subject = f"one of the parameters {part_names}" if part_names else f"parameter {name}"
        return f"{subject} differs, read by {op_t} vs {op_r}: {amount}"
    if kind == "input":
        return f"an input of {op_t} vs {op_r} differs: {amount}"
    input_error = states.ancestry[location.node].worst_agreeing_error
    agreement = (
        f", inputs agree to {format_number(input_error)}" if np.isfinite(input_error) else ""
    )
    operator = (target.kinds or reference.kinds)[-1]
    place = f"{operator} ({op_t}) vs {op_r}"
    if location.scope:
        place = f"{location.scope}, {place}"
    if kind == "isolated":
        slot = _describe_slot(graph, location)
        return f"{place}: {slot}{amount}, but everything computed from it agrees"
    if kind == "nonfinite":
        return f"{place}: {_describe_slot(graph, location)}{amount}{agreement}"
    clauses = [f"{place}: {_describe_slot(graph, location)}{amount}{agreement}", *scalars]
    if kind in ("region", "missing") and len(target.ops) + len(reference.ops) > 2:
        first_t = target.op_names[0] if target.op_names else "nothing"
        first_r = reference.op_names[0] if reference.op_names else "nothing"
        clauses.append(f"the region starts at {first_t} vs {first_r}")
    if location.rearrangement:
        clauses.append(location.rearrangement)
    if kind == "missing":
        clauses.append(_describe_missing_kinds(location))
    if kind == "dtype":
        clauses.append(f"one side computes in {find_coarser_dtype(graph, location)}")
    return "; ".join(clauses)


def _describe_missing_kinds(location: Location) -> str:
    """Return which ops only the reference has: "2 add, mul"."""
    counts = count_missing_kinds(location)
    names = [kind if count == 1 else f"{count} {kind}" for kind, count in counts.items()]
    return f"only the reference has {format_names(names, _MAX_NAMES)}"


def _describe_slot(graph: JointGraph, location: Location) -> str:
    """Return which slot differs if it is not the result of the ops, else ''."""
    slot_pair = graph.comparison.pairs["slot_pair"].iat[location.node]
    if slot_pair is None:
        return ""
    return f"{slot_pair.slot_kind} {location.target.slot} vs {location.reference.slot} "


def _format_amount(row: pd.Series[Any]) -> str:
    """Return how far a pair differs, by the metric that judges it."""
    if row["nonfinite_mismatch"] > 0:
        count = "" if row["metric"] == "statistics" else f"{int(row['nonfinite_mismatch'])} "
        return f"{count}elements are NaN, Inf or masked on one side only"
    if row["statistic"] == SKETCH:
        return f"relative L2 about {format_number(float(row['statistic_error']))} (estimated)"
    if row["statistic"]:
        return f"{row['statistic']} differs by {format_number(float(row['statistic_error']))}"
    metric = _METRIC_NAMES.get(str(row["metric"]), "error")
    return f"{metric} {format_number(float(row['error']))}"


def _describe_statistic(row: pd.Series[Any]) -> list[str]:
    """Return a sentence on the statistic that judges a pair, if statistics do.

    Its limit is the pair's tolerance in the unit of that statistic.
    """
    error, difference = float(row["error"]), float(row["statistic_error"])
    if not row["statistic"] or not error > 0:
        return []
    limit = float(row["tolerance"]) * difference / error
    if row["statistic"] == SKETCH:
        return [
            f"only statistics and sketches are compared: the relative L2 error is about "
            f"{format_number(difference)}, an estimate from 128 numbers of each tensor; "
            f"{format_number(limit)} is allowed"
        ]
    return [
        f"only statistics are compared: {row['statistic']} differs by "
        f"{format_number(difference)} of the tensor's scale, {format_number(limit)} is allowed"
    ]


def describe_evidence(
    kind: Kind, location: Location, graph: JointGraph, states: States, scalars: list[str]
) -> tuple[str, ...]:
    """Return the facts that a finding rests on, one sentence each."""
    row, ancestry = graph.comparison.pairs.iloc[location.node], states.ancestry[location.node]
    facts = [f"paired by {row['evidence']}", *_describe_statistic(row)]
    if kind == "isolated":
        facts.append(_NO_CONSEQUENCE)
    if row["layout"] not in ("same", "reshape"):
        facts.append(f"layout {row['layout']}")
    if ancestry.ancestors:
        worst_error = format_number(ancestry.worst_agreeing_error)
        n_inputs = len(ancestry.ancestors)
        agreement = "its nearest compared input agrees"
        if n_inputs > 1:
            agreement = f"its {n_inputs} nearest compared inputs agree"
        facts.append(f"{agreement} (largest error {worst_error})")
    if location.unpaired_nodes:
        facts.append(_count_unpaired_values(graph, location))
    facts += _describe_unread_parameters(location)
    doubts = (
        location.possible_rearrangement,
        location.uncertain_agreement,
        location.missing_factor,
    )
    facts += filter(None, doubts)
    norm_ratio = compute_norm_ratio(location)
    if abs(norm_ratio - 1) > _NORM_DIFFERENCE:
        facts.append(f"norm is {norm_ratio:.6g} times the reference's")
    masked = int(row["masked"])
    if masked > 0:
        facts.append(f"{masked:,} elements set aside as mask fill, the others compared")
    if masked == STATISTICS_SET_ASIDE:
        facts.append("only the maximum compared: mask fill decides minimum, mean and norm")
    if kind == "missing":
        facts.append(_describe_missing_kinds(location))
    if np.isfinite(row["rounded_error"]):
        rounded_error = format_number(float(row["rounded_error"]))
        facts.append(f"error after rounding both sides to the narrower type: {rounded_error}")
    return (*facts, *scalars)


def _describe_unread_parameters(location: Location) -> list[str]:
    """Return a sentence for each side that reads parameters here that the other does not."""
    facts = []
    for reader, side in (("reference", location.target), ("target", location.reference)):
        if side.unread_parameters:
            names = format_names(side.unread_parameters, _MAX_NAMES)
            facts.append(f"only the {reader} reads {names} here, or a partner of it")
    return facts


def _count_unpaired_values(graph: JointGraph, location: Location) -> str:
    """Return a sentence on the number of values without a partner before a location."""
    counts = []
    for side, classes in (
        ("target", graph.target_classes),
        ("reference", graph.reference_classes),
    ):
        count = sum(classes[node] >= 0 for node in location.unpaired_nodes)
        if count >= 2 * MAX_REGION_END:
            counts.append(f"at least {2 * MAX_REGION_END} {side}")
        else:
            counts.append(f"{count} {side}")
    return f"unpaired values in between: {', '.join(counts)}"


def describe_scalars(graph: JointGraph, location: Location) -> list[str]:
    """Return a sentence for each scalar argument that differs between paired ops here."""
    table = graph.comparison.scalars
    is_here = table["target_op"].isin(location.target.ops)
    is_here &= table["reference_op"].isin(location.reference.ops)
    return [
        f"{format_argument(str(row.argument))} {row.target:.6g} against {row.reference:.6g}"
        for row in table[is_here].itertuples()
    ]


def format_argument(argument: str) -> str:
    """Return the words for a scalar argument, whose name may be unknown."""
    return f"scalar argument {argument}".rstrip()


def describe_others(others: Sequence[Location]) -> str:
    """Return a sentence with the first further places of a difference."""
    places = []
    for location in others:
        op_t = location.target.op_names[-1] if location.target.op_names else "nothing"
        op_r = location.reference.op_names[-1] if location.reference.op_names else "nothing"
        places.append(f"{op_t} vs {op_r}")
    return f"the same difference shows at {format_names(places, _MAX_NAMES)}"


def compute_norm_ratio(location: Location) -> float:
    """Return ||t|| / ||r||, NaN if unknown. It shows a factor, which a cosine does not."""
    target, reference = location.target, location.reference
    norm_t = float(target.flow.norms[target.value])
    norm_r = float(reference.flow.norms[reference.value])
    ratio = norm_t / norm_r if norm_r else np.nan
    return ratio if np.isfinite(ratio) else np.nan
