"""Findings: the places where the runs diverge, ranked and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ..comparison.mask_fill import STATISTICS_SET_ASIDE
from ..graph.module_paths import find_common_path
from ..model.arrays import Ints
from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff, is_floating
from ..model.finding import Finding, Kind
from ..model.formatting import format_number
from ..model.sketches import SKETCH
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER, PHASES
from ..model.verdict import INTRODUCED, ISOLATED
from .forward_walk import MAX_REGION_END
from .joint_graph import JointGraph
from .locations import Location, SideLocation, build_location
from .model_constants import is_constant, is_immediate
from .states import States

#: Rank of the kinds that come first, because they explain everything after them.
_KIND_RANKS: Mapping[Kind, int] = {"input": 0, "parameter": 1, "constant": 1}
_OTHER_KIND_RANK = 2
#: Rank of what nothing follows from.
_ISOLATED_RANK = 3
#: Kinds of what ops compute, and the number of further places that a finding names.
_COMPUTED_KINDS: frozenset[Kind] = frozenset({"introduced", "region", "missing"})
_MAX_OTHER_PLACES = 4
#: (rank of the kind, rank of the phase, place in the dataflow)
_DraftKey: TypeAlias = tuple[int, int, int]
#: Counts of the kinds of both sides' ops, and sentences on scalar arguments that differ.
_UpdateKey: TypeAlias = tuple[
    frozenset[tuple[str, int]], frozenset[tuple[str, int]], tuple[str, ...]
]
#: Roundoffs of a dtype by which it explains an error.
_DTYPE_ROUNDOFFS = 8
#: Confidence in the ancestors of a value that has none.
_LEAF_CONFIDENCE = 0.9
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
_COPIED_METRICS = (
    "error", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond",
    "nonfinite_mismatch", "rounded_error", "spread", "estimated_relative_l2", "estimated_cosine",
)  # fmt: skip


def build_findings(
    graph: JointGraph,
    states: States,
    scopes_t: list[str],
    scopes_r: list[str],
    first_findings: tuple[Finding, ...] = (),
) -> tuple[Finding, ...]:
    """Return all findings, ranked.

    First come ``first_findings``, then introduced divergences: inputs, parameters, and ops by phase
    and dataflow; then isolated differences. What an exchange of parameters among the first ones
    explains is no finding of its own.
    """
    pair_states = states.state[: len(graph.comparison.pairs)]
    is_place = (pair_states == INTRODUCED) | (pair_states == ISOLATED)
    locations = [
        build_location(graph, states, node, scopes_t, scopes_r)
        for node in np.flatnonzero(is_place).tolist()
    ]
    position = {node: index for index, node in enumerate(graph.order)}
    drafts = []
    for location in locations:
        is_isolated = pair_states[location.node] == ISOLATED
        kind: Kind = "isolated" if is_isolated else classify_kind(graph, location)
        kind_rank = _ISOLATED_RANK if is_isolated else _KIND_RANKS.get(kind, _OTHER_KIND_RANK)
        key = (kind_rank, PHASES.index(location.phase), position[location.node])
        drafts.append((key, kind, location))
    drafts.sort(key=lambda draft: draft[0])
    findings = [replace(finding, rank=rank) for rank, finding in enumerate(first_findings, 1)]
    for kind, location, others in _group_drafts(graph, drafts):
        explaining_rank = _find_exchange(first_findings, kind, location)
        if explaining_rank is not None:
            explaining = findings[explaining_rank]
            sentence = _describe_others((location, *others))
            findings[explaining_rank] = replace(
                explaining, evidence=(*explaining.evidence, sentence)
            )
            continue
        finding = _build_finding(len(findings) + 1, kind, location, graph, states)
        if others:
            finding = replace(finding, evidence=(*finding.evidence, _describe_others(others)))
        findings.append(finding)
    return tuple(findings)


def _find_exchange(first_findings: Sequence[Finding], kind: Kind, location: Location) -> int | None:
    """Return the place of the exchange of parameters that explains a location, None if none does.

    Parameters that changed places agree with their partners. What differs is how their module
    computes with them.
    """
    if kind not in _COMPUTED_KINDS or location.phase != FORWARD:
        return None
    for place, finding in enumerate(first_findings):
        if finding.kind != "parameter" or not finding.causes or not finding.scope:
            continue
        for side in (location.target, location.reference):
            if f"{side.scope}.".startswith(f"{finding.scope}."):
                return place
    return None


def _group_drafts(
    graph: JointGraph, drafts: Sequence[tuple[_DraftKey, Kind, Location]]
) -> list[tuple[Kind, Location, list[Location]]]:
    """Return (kind, location, further locations of the same difference), in order.

    Regions that share a value without a partner are one: it leads to several results. So are
    constant tables whose products are computed with each other, such as cosines and sines, results
    of one module that an op computes with each other, such as the terms of a rotation, steps of a
    module that ops of one kind compute from one value, and what one layer computes in a coarser
    dtype. So are gradients that are computed from one gradient: those of a layer's input and of its
    weight. So are the updates of weights that differ in the same way, see :func:`_describe_update`.
    """
    groups: list[tuple[Kind, Location, list[Location]]] = []
    groups_of_updates: dict[_UpdateKey, list[Location]] = {}
    for _, kind, location in drafts:
        if location.phase == OPTIMIZER:  # every weight is a result of its own
            update_key = _describe_update(graph, kind, location)
            if update_key in groups_of_updates:
                groups_of_updates[update_key].append(location)
                continue
            groups.append((kind, location, []))
            if update_key is not None:
                groups_of_updates[update_key] = groups[-1][2]
            continue
        for first_kind, first, others in groups:
            has_related_kind = kind == first_kind or {kind, first_kind} <= _COMPUTED_KINDS
            if has_related_kind and any(
                _is_one_difference(graph, kind, place, location) for place in (first, *others)
            ):
                others.append(location)
                break
        else:
            groups.append((kind, location, []))
    return groups


def _describe_update(graph: JointGraph, kind: Kind, location: Location) -> _UpdateKey | None:
    """Return what is equal for all weights whose updates differ in one way, None if unknown.

    The ops that compute the update say so: other numbers among their arguments, or ops that only
    one side has. An update that differs with equal ops, or as another decomposition, may have any
    cause.
    """
    scalars = tuple(_describe_scalars(graph, location))
    kinds_t = _count_computing_kinds(location.target)
    kinds_r = _count_computing_kinds(location.reference)
    has_surplus = kinds_t != kinds_r and (kinds_t <= kinds_r or kinds_r <= kinds_t)
    if kind not in _COMPUTED_KINDS or not (scalars or has_surplus):
        return None
    return frozenset(kinds_t.items()), frozenset(kinds_r.items()), scalars


def _is_one_difference(graph: JointGraph, kind: Kind, first: Location, other: Location) -> bool:
    """Return whether two locations are parts of one region, table or composite."""
    results_of_first = _list_results(graph, {first.node})
    results_of_other = _list_results(graph, {other.node})
    if kind == "constant":
        return not _list_results(graph, results_of_first).isdisjoint(
            _list_results(graph, results_of_other)
        )
    has_one_scope = bool(first.scope) and first.scope == other.scope
    if kind == "dtype":  # all projections of a block that was cast
        return has_one_scope or bool(find_common_path([first.scope, other.scope]))
    is_computed = kind in _COMPUTED_KINDS
    if not is_computed or not set(first.unpaired_nodes).isdisjoint(other.unpaired_nodes):
        return is_computed
    if first.phase == other.phase == BACKWARD:
        parents = set(graph.parents[first.node]) & set(graph.parents[other.node])
        if any(graph.phase[parent] == BACKWARD for parent in parents):
            return True
    return has_one_scope and (
        not results_of_first.isdisjoint(results_of_other) or _is_repeated_step(graph, first, other)
    )


def _is_repeated_step(graph: JointGraph, first: Location, other: Location) -> bool:
    """Return whether ops of one kind compute two locations from one value, as a scan its steps."""
    has_same_kinds = (
        first.target.kinds[-1:] == other.target.kinds[-1:]
        and first.reference.kinds[-1:] == other.reference.kinds[-1:]
    )
    return has_same_kinds and not set(graph.parents[first.node]).isdisjoint(
        graph.parents[other.node]
    )


def _list_results(graph: JointGraph, nodes: Iterable[int]) -> set[int]:
    """Return what is computed from some nodes directly."""
    return {child for node in nodes for child in graph.children[node]}


def _describe_others(others: Sequence[Location]) -> str:
    """Return a sentence with the first further places of a difference."""
    places = []
    for location in others[:_MAX_OTHER_PLACES]:
        op_t = location.target.op_names[-1] if location.target.op_names else "nothing"
        op_r = location.reference.op_names[-1] if location.reference.op_names else "nothing"
        places.append(f"{op_t} vs {op_r}")
    n_more = len(others) - len(places)
    more = f" and {n_more} more" if n_more else ""
    return f"the same difference shows at {', '.join(places)}{more}"


def classify_kind(graph: JointGraph, location: Location) -> Kind:
    """Return the kind of divergence at a location, see ``model.finding.Kind``."""
    if graph.comparison.pairs["nonfinite_mismatch"].iat[location.node] > 0:
        return "nonfinite"
    if location.target.is_graph_input and location.reference.is_graph_input:
        if not _belongs_to_model(location):
            return "input"
        alignment = graph.comparison.alignment
        kinds = (alignment.target_kinds, alignment.reference_kinds)
        return "constant" if is_constant(location, kinds) else "parameter"
    if _find_coarser_dtype(graph, location):
        return "dtype"
    if find_missing_kinds(location):
        return "missing"
    return "region" if location.unpaired_nodes else "introduced"


def find_missing_kinds(location: Location) -> tuple[str, ...]:
    """Return the operator kinds that only the reference has since the last agreement.

    Empty if the target has kinds of its own there, too.
    """
    kinds_t = _count_computing_kinds(location.target)
    kinds_r = _count_computing_kinds(location.reference)
    if not location.unpaired_nodes or not kinds_t or kinds_t - kinds_r:
        return ()
    return tuple((kinds_r - kinds_t).elements())


def _count_computing_kinds(side: SideLocation) -> Counter[str]:
    """Count the kinds of one side's ops that are no layout ops and no records of module calls."""
    levels = side.flow.trace.ops["level"]
    return Counter(
        kind
        for op, kind in zip(side.ops, side.kinds, strict=True)
        if not side.flow.is_layout[op] and levels.iat[op] == "op"
    )


def _belongs_to_model(location: Location) -> bool:
    """Return whether a graph input belongs to the model and not to the batch.

    It does if it has a parameter's name, is a constant of the graph, or is floating and no op's
    first input.
    """
    target, reference = location.target, location.reference
    if target.parameter or reference.parameter:
        return True
    dtype = str(reference.flow.list_column("dtype")[reference.value])
    if not is_floating(dtype):
        return False
    is_graph_constant = is_immediate(target) or is_immediate(reference)
    is_first_input = "input.0" in reference.slots
    return is_graph_constant or not is_first_input


def _find_coarser_dtype(graph: JointGraph, location: Location) -> str:
    """Return the dtype that only one side computed in here, if its rounding explains the error.

    '' if there is none.
    """
    dtype_t = _find_coarsest_dtype(location, location.target, graph.target_classes)
    dtype_r = _find_coarsest_dtype(location, location.reference, graph.reference_classes)
    roundoff_t = get_unit_roundoff(dtype_t) if dtype_t else 0.0
    roundoff_r = get_unit_roundoff(dtype_r) if dtype_r else 0.0
    if roundoff_t == roundoff_r:
        return ""
    error = float(graph.comparison.pairs["error"].iat[location.node])
    if not error <= _DTYPE_ROUNDOFFS * max(roundoff_t, roundoff_r):
        return ""
    return dtype_t if roundoff_t > roundoff_r else dtype_r


def _find_coarsest_dtype(location: Location, side: SideLocation, classes: Ints) -> str:
    """Return the coarsest floating dtype of one side's values here, '' if there is none."""
    dtypes = []
    for node in (*location.unpaired_nodes, location.node):
        value = int(classes[node])
        if value >= 0:
            dtypes.append(str(side.flow.list_column("dtype")[value]))
    floating_dtypes = [dtype for dtype in dtypes if dtype in UNIT_ROUNDOFF]
    return max(floating_dtypes, key=get_unit_roundoff, default="")


def _build_finding(
    rank: int, kind: Kind, location: Location, graph: JointGraph, states: States
) -> Finding:
    row = graph.comparison.pairs.iloc[location.node]
    scalars = _describe_scalars(graph, location)
    source = {}
    for side_name, side in (("target", location.target), ("reference", location.reference)):
        if side.source:
            source[side_name] = side.source
    return Finding(
        rank=rank,
        kind=kind,
        phase=location.phase,
        scope=location.scope,
        title=_format_title(kind, location, graph, states, scalars),
        target_ops=location.target.named_ops,
        reference_ops=location.reference.named_ops,
        slots=((location.target.slot, location.reference.slot),),
        metrics=_collect_metrics(location, graph, states),
        tolerance=float(row["tolerance"]),
        confidence=_compute_confidence(graph, states, location.node),
        evidence=_describe_evidence(kind, location, graph, states, scalars),
        source=source,
    )


def _collect_metrics(location: Location, graph: JointGraph, states: States) -> dict[str, float]:
    """Return the finite metrics of a finding by name."""
    row = graph.comparison.pairs.iloc[location.node]
    metrics = {name: float(row[name]) for name in _COPIED_METRICS}
    metrics["input_error"] = float(states.ancestry[location.node].worst_agreeing_error)
    metrics["norm_ratio"] = _compute_norm_ratio(location)
    recomputation = states.recomputations.get(location.node)
    if recomputation is not None:
        metrics["float64_ratio"] = recomputation.ratio
        metrics["amplification"] = recomputation.amplification
    return {name: figure for name, figure in metrics.items() if np.isfinite(figure)}


def _format_title(
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
        clauses.append(f"only the reference has {', '.join(find_missing_kinds(location))}")
    if kind == "dtype":
        clauses.append(f"one side computes in {_find_coarser_dtype(graph, location)}")
    return "; ".join(clauses)


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


def _describe_evidence(
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
    norm_ratio = _compute_norm_ratio(location)
    if abs(norm_ratio - 1) > _NORM_DIFFERENCE:
        facts.append(f"norm is {norm_ratio:.6g} times the reference's")
    masked = int(row["masked"])
    if masked > 0:
        facts.append(f"{masked:,} elements set aside as mask fill, the others compared")
    if masked == STATISTICS_SET_ASIDE:
        facts.append("only the maximum compared: mask fill decides minimum, mean and norm")
    if kind == "missing":
        facts.append(f"only the reference has {', '.join(find_missing_kinds(location))}")
    if np.isfinite(row["rounded_error"]):
        rounded_error = format_number(float(row["rounded_error"]))
        facts.append(f"error after rounding both sides to the narrower type: {rounded_error}")
    return (*facts, *scalars)


def _describe_unread_parameters(location: Location) -> list[str]:
    """Return a sentence for each side that reads parameters here that the other does not."""
    facts = []
    for reader, side in (("reference", location.target), ("target", location.reference)):
        names = side.unread_parameters[:_MAX_OTHER_PLACES]
        if names:
            n_more = len(side.unread_parameters) - len(names)
            more = f" and {n_more} more" if n_more else ""
            facts.append(
                f"only the {reader} reads {', '.join(names)}{more} here, or a partner of it"
            )
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


def _describe_scalars(graph: JointGraph, location: Location) -> list[str]:
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


def _compute_norm_ratio(location: Location) -> float:
    """Return ||t|| / ||r||, NaN if unknown. It shows a factor, which a cosine does not."""
    target, reference = location.target, location.reference
    norm_t = float(target.flow.norms[target.value])
    norm_r = float(reference.flow.norms[reference.value])
    ratio = norm_t / norm_r if norm_r else np.nan
    return ratio if np.isfinite(ratio) else np.nan


def _compute_confidence(graph: JointGraph, states: States, node: int) -> float:
    """Return the confidence of the pair times the mean of its ancestors' confidence."""
    pair_confidence = graph.comparison.pairs["confidence"].to_numpy()
    ancestors = [n for n in states.ancestry[node].ancestors if n < len(pair_confidence)]
    ancestor_confidence = _LEAF_CONFIDENCE
    if ancestors:
        ancestor_confidence = float(np.mean([pair_confidence[n] for n in ancestors]))
    return round(float(pair_confidence[node]) * ancestor_confidence, 3)
