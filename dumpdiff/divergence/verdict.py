"""The result of a comparison: findings, coverage, tables, and the verdict they allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..comparison import Comparison
from ..graph import Flow
from ..graph.layers import locate_ops
from ..model.arrays import Objects
from ..model.result import Result, Side
from ..model.finding import Finding
from ..model.verdict import AlignmentVerdict
from ..model.trace import BACKWARD, FORWARD, Problem
from ..rulebook import Rules
from .coverage import compute_coverage
from .equivalences import learn_equivalences, match_parameter_names
from .findings import build_findings
from .joint_graph import JointGraph, build_joint_graph
from .parameters import find_exchanged_parameters, find_shape_mismatches
from .states import AGREEING, INTRODUCED, States, classify
from .tables import build_pair_table, build_unmatched_table

_ONE_MODEL = 0.25  # share of forward ops with a partner below which findings are not believed
_SCALARS_NAMED = 5


def locate(comparison: Comparison, rules: Rules, min_coverage: float) -> Result:
    """Classify every value, rank what was introduced, and say how far that can be trusted.

    The verdict is 'diverged' if anything was introduced (and a quarter of either side's forward ops have partners);
    else 'aligned' if in forward and backward (as far as both sides recorded them) at least ``min_coverage`` of each
    side's ops were compared or healed; else 'inconclusive'.
    """
    alignment = comparison.alignment
    target, reference = alignment.target, alignment.reference
    graph = build_joint_graph(comparison)
    states = classify(graph, rules)
    scopes_t, scopes_r = locate_ops(target, rules), locate_ops(reference, rules)
    parted = [scopes_t[producer] for producer in _introduced(graph, states)]
    first = (*find_shape_mismatches(alignment, rules), *find_exchanged_parameters(alignment, rules, parted))
    found = build_findings(graph, states, scopes_t, scopes_r, first)
    covered = compute_coverage(graph, states)
    short = _short(covered, min_coverage)
    stranger = _blind(target, reference) or _stranger(covered) or _no_baseline(comparison)
    verdict: AlignmentVerdict = (
        "inconclusive" if stranger or (short and not found) else "diverged" if found else "aligned"
    )
    notes = [*stranger, *short] if verdict == "inconclusive" else []
    if graph.bridges:
        said = ", ".join(f"{count} by {what}" for what, count in graph.bridges.most_common())
        notes.append(f"holes in the record were bridged: {said}")
    notes += _unjudged_scalars(comparison, found)
    notes += _uncompared_phases(covered)
    details = {
        "min_coverage": min_coverage,
        "matching_tolerance": alignment.tolerance,
        "bridges": dict(graph.bridges),
        **_edges(target, "target"),
        **_edges(reference, "reference"),
    }
    return Result(
        target=_side(target, comparison.problems),
        reference=_side(reference, ()),
        verdict=verdict,
        findings=found,
        coverage=covered,
        pairs=build_pair_table(graph, states, scopes_t, scopes_r),
        unmatched=build_unmatched_table(graph, states, scopes_t, scopes_r),
        learned=learn_equivalences(graph, states),
        parameters=match_parameter_names(graph, states),
        noise_floor=_noise(comparison, states.state),
        baseline=comparison.baseline,
        notes=tuple(notes),
        details=details,
    )


def _introduced(graph: JointGraph, states: States) -> list[int]:
    """Target ops that made the values at which the runs part."""
    nodes = np.flatnonzero(states.state[: len(graph.comparison.pairs)] == INTRODUCED)
    makers = graph.comparison.alignment.target.producers[graph.target_classes[nodes]]
    return [int(maker) for maker in makers if maker >= 0]


def _blind(target: Flow, reference: Flow) -> list[str]:
    """One side has numbers and the other checksums alone: there is nothing to compare."""
    sides = {"target": target, "reference": reference}
    without = [
        side
        for side, flow in sides.items()
        if len(flow.classes) and flow.classes["max"].isna().all()
    ]
    if len(without) != 1:
        return []
    return [
        f"the {without[0]} recorded checksums alone, the other side none: dump statistics or tensors of it"
    ]


def _stranger(covered: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Why the two may not be dumps of one model at all: then nothing that differs means anything."""
    shares = [figures[FORWARD]["share"] for figures in covered.values() if FORWARD in figures]
    if shares and max(shares) >= _ONE_MODEL:
        return []
    if not shares and any(
        BACKWARD in figures and figures[BACKWARD]["share"] >= _ONE_MODEL
        for figures in covered.values()
    ):
        return []
    return [
        f"only {max(shares, default=0.0):.0%} of either side's forward ops have a partner: "
        "are these dumps of one model?"
    ]


def _no_baseline(comparison: Comparison) -> list[str]:
    """Why the second run of the reference cannot be what the target is judged against."""
    return (
        [comparison.baseline.unusable]
        if comparison.baseline and comparison.baseline.unusable
        else []
    )


def _short(covered: Mapping[str, Mapping[str, Mapping[str, float]]], wanted: float) -> list[str]:
    """What keeps the verdict from being 'aligned', in words."""
    reasons = []
    for phase in (FORWARD, BACKWARD):
        if phase == BACKWARD and not all(phase in covered[side] for side in covered):
            continue
        for side in covered:
            figures = covered[side].get(phase)
            if figures is None:
                reasons.append(f"the {side} has no {phase} op with a result that can be compared")
            elif (share := (figures["compared"] + figures["healed"]) / figures["ops"]) < wanted:
                reasons.append(
                    f"only {share:.0%} of the {side}'s {phase} ops could be compared or lead to what could, "
                    f"{wanted:.0%} are wanted"
                )
    return reasons


def _unjudged_scalars(comparison: Comparison, found: Sequence[Finding]) -> list[str]:
    """Scalar arguments that differ although what the ops made agrees: below the noise, but a fault may hide there."""
    told = {op for finding in found for op in finding.target_ops}
    names_t, names_r = (
        flow.trace.ops["name"].to_numpy()
        for flow in (comparison.alignment.target, comparison.alignment.reference)
    )
    rows = [
        row
        for row in comparison.scalars.to_dict("records")
        if names_t[row["target_op"]] not in told
    ]
    said = [
        f"scalar argument of {names_t[row['target_op']]} is {row['target']:.6g}, "
        f"of {names_r[row['reference_op']]} {row['reference']:.6g}"
        for row in rows[:_SCALARS_NAMED]
    ]
    more = len(rows) - len(said)
    return said + ([f"{more} more scalar arguments differ"] if more else [])


def _uncompared_phases(covered: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Phases that both sides recorded and of which nothing could be compared: the verdict says nothing about them."""
    common = [phase for phase in covered["target"] if phase in covered["reference"]]
    return [
        f"both sides recorded {phase} ops, but none could be compared: the verdict does not cover them"
        for phase in common
        if not any(covered[side][phase]["compared"] for side in covered)
    ]


def _side(flow: Flow, problems: tuple[Problem, ...]) -> Side:
    trace = flow.trace
    return Side(
        trace.source,
        len(trace.ops),
        len(trace.tensors),
        (*trace.problems, *flow.problems, *problems),
    )


def _edges(flow: Flow, role: str) -> dict[str, object]:
    """What the reader proved about the graph it joined: matched files, byte-verified edges."""
    names = ("npy_matched", "edges_verified")
    return {
        f"{role}_{name}": flow.trace.source.details[name]
        for name in names
        if name in flow.trace.source.details
    }


def _noise(comparison: Comparison, state: Objects) -> float:
    """Median error of the pairs that agree, leaving out exact ones if there are others."""
    pairs = comparison.pairs
    errors = pairs["error"].to_numpy()[
        (state[: len(pairs)] == AGREEING) & (pairs["metric"] != "mismatches").to_numpy()
    ]
    inexact = errors[errors > 0]
    return float(np.median(inexact)) if len(inexact) else (0.0 if len(errors) else float("nan"))
