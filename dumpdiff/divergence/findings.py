"""Findings: the places where the runs diverge, ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..model.finding import Finding, Kind
from ..model.trace import FORWARD, PHASES
from ..model.verdict import INTRODUCED, ISOLATED
from ..rulebook import Rules
from .finding_groups import group_locations
from .finding_kinds import COMPUTED_KINDS, classify_kind, is_read_late
from .finding_words import (
    compute_norm_ratio,
    describe_evidence,
    describe_others,
    describe_scalars,
    format_title,
)
from .joint_graph import JointGraph
from .locations import Location, build_location
from .rearrangements import find_common_sources
from .states import States

#: Rank of the kinds that come first, because they explain everything after them.
_KIND_RANKS: Mapping[Kind, int] = {"input": 0, "parameter": 1}
_OTHER_KIND_RANK = 2
#: Rank of what nothing follows from.
_ISOLATED_RANK = 3
#: Confidence in the ancestors of a value that has none.
_LEAF_CONFIDENCE = 0.9
_COPIED_METRICS = (
    "error", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond",
    "nonfinite_mismatch", "rounded_error", "spread", "estimated_relative_l2", "estimated_cosine",
)  # fmt: skip


def build_findings(
    graph: JointGraph,
    states: States,
    rules: Rules,
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
    sources = find_common_sources(
        graph, states.state.tolist(), lambda node: states.ancestry[node].ancestors
    )
    locations = [
        build_location(graph, states, node, scopes_t, scopes_r, sources.get(node))
        for node in np.flatnonzero(is_place).tolist()
    ]
    position = {node: index for index, node in enumerate(graph.order.tolist())}
    drafts = []
    for location in locations:
        is_isolated = pair_states[location.node] == ISOLATED
        kind: Kind = "isolated" if is_isolated else classify_kind(graph, location, rules)
        kind_rank = _ISOLATED_RANK if is_isolated else _KIND_RANKS.get(kind, _OTHER_KIND_RANK)
        nodes = [location.node]
        if is_read_late(kind, location):
            kind_rank = _OTHER_KIND_RANK
            nodes = list(graph.children[location.node]) or nodes
        key = (kind_rank, PHASES.index(location.phase), min(position[node] for node in nodes))
        drafts.append((key, kind, location))
    drafts.sort(key=lambda draft: draft[0])
    findings = [replace(finding, rank=rank) for rank, finding in enumerate(first_findings, 1)]
    for kind, location, others in group_locations(graph, [draft[1:] for draft in drafts]):
        explaining_rank = _find_exchange(first_findings, kind, location)
        if explaining_rank is not None:
            explaining = findings[explaining_rank]
            sentence = describe_others((location, *others))
            findings[explaining_rank] = replace(
                explaining, evidence=(*explaining.evidence, sentence)
            )
            continue
        finding = _build_finding(len(findings) + 1, kind, location, graph, states)
        if others:
            finding = replace(finding, evidence=(*finding.evidence, describe_others(others)))
        findings.append(finding)
    return tuple(findings)


def _find_exchange(first_findings: Sequence[Finding], kind: Kind, location: Location) -> int | None:
    """Return the place of the exchange of parameters that explains a location, None if none does.

    Parameters that changed places agree with their partners. What differs is how their module
    computes with them.
    """
    if kind not in COMPUTED_KINDS or location.phase != FORWARD:
        return None
    for place, finding in enumerate(first_findings):
        if finding.kind != "parameter" or not finding.causes or not finding.scope:
            continue
        for side in (location.target, location.reference):
            if f"{side.scope}.".startswith(f"{finding.scope}."):
                return place
    return None


def _build_finding(
    rank: int, kind: Kind, location: Location, graph: JointGraph, states: States
) -> Finding:
    row = graph.comparison.pairs.iloc[location.node]
    scalars = describe_scalars(graph, location)
    source = {}
    for side_name, side in (("target", location.target), ("reference", location.reference)):
        if side.source:
            source[side_name] = side.source
    return Finding(
        rank=rank,
        kind=kind,
        phase=location.phase,
        scope=location.scope,
        title=format_title(kind, location, graph, states, scalars),
        target_ops=location.target.named_ops,
        reference_ops=location.reference.named_ops,
        slots=((location.target.slot, location.reference.slot),),
        metrics=_collect_metrics(location, graph, states),
        tolerance=float(row["tolerance"]),
        confidence=_compute_confidence(graph, states, location.node),
        evidence=describe_evidence(kind, location, graph, states, scalars),
        source=source,
    )


def _collect_metrics(location: Location, graph: JointGraph, states: States) -> dict[str, float]:
    """Return the finite metrics of a finding by name."""
    row = graph.comparison.pairs.iloc[location.node]
    metrics = {name: float(row[name]) for name in _COPIED_METRICS}
    metrics["input_error"] = float(states.ancestry[location.node].worst_agreeing_error)
    metrics["norm_ratio"] = compute_norm_ratio(location)
    _, recomputation = states.recomputations.get(location.node, (None, None))
    if recomputation is not None:
        metrics["float64_ratio"] = recomputation.ratio
        metrics["amplification"] = recomputation.amplification
    return {name: figure for name, figure in metrics.items() if np.isfinite(figure)}


def _compute_confidence(graph: JointGraph, states: States, node: int) -> float:
    """Return the confidence of the pair times the mean of its ancestors' confidence."""
    pair_confidence = graph.comparison.pairs["confidence"].to_numpy()
    ancestors = [n for n in states.ancestry[node].ancestors if n < len(pair_confidence)]
    ancestor_confidence = _LEAF_CONFIDENCE
    if ancestors:
        ancestor_confidence = float(np.mean([pair_confidence[n] for n in ancestors]))
    return round(float(pair_confidence[node]) * ancestor_confidence, 3)
