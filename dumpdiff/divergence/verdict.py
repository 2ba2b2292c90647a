"""The result of a comparison: findings, coverage, tables, and the verdict that they allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..alignment import Alignment
from ..comparison import Comparison
from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Objects
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.result import Result, Side
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..model.verdict import AGREEING, INTRODUCED, AlignmentVerdict
from ..rulebook import Rules
from .coverage import compute_coverage, count_index_ops, count_states
from .equivalences import learn_equivalences, match_parameter_names
from .finding_words import format_argument
from .findings import build_findings
from .gradient_scales import insert_gradient_scales
from .joint_graph import JointGraph, build_joint_graph
from .misread_layouts import compare_as_stored, find_misread_layouts
from .parameters import (
    find_exchanged_parameters,
    find_exchanged_products,
    find_shape_mismatches,
)
from .reliability import SideProblems, assess_reliability, weaken_findings
from .running_statistics import describe_running_statistics, find_momentum_differences
from .states import States, classify
from .tables import (
    build_pair_table,
    build_uncompared_table,
    build_unmatched_table,
    flag_regions,
)
from .uncompared_gradients import find_gradient_gaps
from .uncompared_losses import find_loss_gaps
from .uncompared_updates import describe_updates, find_update_gaps
from .unrecorded_gradients import (
    describe_unrecorded_gradients,
    find_unrecorded_gradients,
    insert_untrained_parameters,
)

#: Share of forward ops with a partner below which the dumps are hardly of one model, and findings
#: mean nothing.
_MIN_SHARE_OF_ONE_MODEL = 0.25
#: ... unless this share of each side's matrices of weights, and at least so many, are equal.
_MIN_SHARE_OF_EQUAL_WEIGHTS, _MIN_EQUAL_MATRICES = 0.5, 3
#: Differing scalar arguments that a note each is written for.
_MAX_SCALAR_NOTES = 5
#: What a reader proved about the graph it joined: matched files, byte-verified edges.
_READER_DETAILS = ("npy_matched", "edges_verified")

#: Evidence of a bridge -> how a note describes it.
_BRIDGE_EVIDENCE = {
    "other side": "the other side's dump",
    "stack": "stacked numbers",
    "joined": "the parts of a joined tensor",
    "rearranged": "a rearranged tensor",
    "cast": "a tensor in another dtype",
    "repeated": "a repeated tensor",
    "part": "a tensor's part",
    "opposite": "a mask's opposite",
    "one-hot": "the places of indices",
    "multiple": "a gradient's multiple",
    "state": "the call that overwrote a state",
    "module call": "the inputs of the module call",
    "order": "execution order",
}
#: Counts by side and phase, see :func:`compute_coverage`.
_Coverage = Mapping[str, Mapping[str, Mapping[str, float]]]


def locate(comparison: Comparison, rules: Rules, min_coverage: float) -> Result:
    """Classify every value, rank what was introduced, and decide how far that can be trusted.

    The verdict is 'diverged' if anything was introduced and a quarter of either side's forward ops
    have partners. Else it is 'aligned' if no compared value is beyond its tolerance without another
    decomposition that explains it, and if at least ``min_coverage`` of each side's ops were
    compared or reconverged, in forward and in backward (if both sides recorded it), if the losses
    and all gradients that have a parameter's name were compared, and if no side lacks the gradient
    of a parameter that the other trains. Else it is 'inconclusive'.
    """
    alignment = comparison.alignment
    target, reference = alignment.target, alignment.reference
    graph = build_joint_graph(comparison)
    states = classify(graph, rules)
    misread_weights = find_misread_layouts(graph, states)
    if misread_weights:
        compare_as_stored(comparison, misread_weights)
        states = classify(graph, rules)
    scopes_t, scopes_r = (side.scopes for side in alignment.sides)
    diverged_ops = _find_introducing_ops(graph, states)
    diverged_scopes = [scopes_t[op] for op in diverged_ops]
    first_findings = (
        *find_shape_mismatches(alignment, rules),
        *(
            find_exchanged_parameters(alignment, rules, diverged_scopes)
            or find_exchanged_products(comparison, rules, diverged_ops)
        ),
    )
    findings = build_findings(graph, states, rules, scopes_t, scopes_r, first_findings)
    findings = insert_gradient_scales(findings, graph, states)
    unrecorded_gradients = find_unrecorded_gradients(alignment)
    findings = insert_untrained_parameters(findings, alignment, unrecorded_gradients)
    findings += find_momentum_differences(graph, rules, len(findings))
    coverage, index_ops = compute_coverage(graph, states), count_index_ops(graph, states)
    sides = {
        "target": _summarize_side(comparison, 0),
        "reference": _summarize_side(comparison, 1),
    }
    reliability = assess_reliability(
        {
            name: SideProblems(side.source.path, side.problems, side.tensors)
            for name, side in sides.items()
        },
        max_share=1 - min_coverage,
    )
    findings = weaken_findings(findings, reliability)
    missing_gradients = describe_unrecorded_gradients(unrecorded_gradients)
    obstacles = _find_obstacles(comparison, coverage) or list(reliability.obstacles)
    gaps = [
        *_describe_isolated(findings),
        *_find_coverage_gaps(coverage, index_ops, min_coverage),
        *find_update_gaps(graph, coverage),
        *find_loss_gaps(alignment),
        *find_gradient_gaps(graph, states),
        *missing_gradients,
    ]
    has_diverged = any(finding.kind != "isolated" for finding in findings)
    verdict: AlignmentVerdict = "diverged" if has_diverged else "aligned"
    if obstacles or (gaps and not has_diverged):
        verdict = "inconclusive"
    notes = [*obstacles, *gaps] if verdict == "inconclusive" else []
    if graph.bridges:
        notes.append(_describe_bridges(graph.bridges))
    notes += _describe_silent_scalars(comparison, findings)
    notes += _describe_index_ops(coverage, index_ops, min_coverage)
    notes += _describe_uncompared_phases(coverage)
    notes += comparison.remarks
    notes += describe_updates(graph, coverage)
    notes += describe_running_statistics(graph, rules)
    if verdict != "inconclusive":
        notes += missing_gradients
    details = {
        "min_coverage": min_coverage,
        "matching_tolerance": alignment.tolerance,
        "bridges": dict(graph.bridges),
        **_collect_reader_details(target, "target"),
        **_collect_reader_details(reference, "reference"),
    }
    is_in_region = flag_regions(graph, states)
    return Result(
        target=sides["target"],
        reference=sides["reference"],
        verdict=verdict,
        findings=findings,
        coverage=coverage,
        pairs=build_pair_table(graph, states, scopes_t, scopes_r),
        unmatched=build_unmatched_table(graph, states, is_in_region, scopes_t, scopes_r),
        uncompared=build_uncompared_table(graph, states, is_in_region, scopes_t, scopes_r),
        states=count_states(graph, states),
        learned=learn_equivalences(graph, states),
        parameters=match_parameter_names(graph, states),
        noise_floor=_compute_noise_floor(comparison, states.state),
        baseline=comparison.baseline,
        notes=tuple(notes),
        weaknesses=reliability.weaknesses,
        details=details,
    )


def _find_introducing_ops(graph: JointGraph, states: States) -> frozenset[int]:
    """Return the target's ops that produced the values at which the runs diverge."""
    nodes = np.flatnonzero(states.state[: len(graph.comparison.pairs)] == INTRODUCED)
    target = graph.comparison.alignment.target
    producers = target.producers[graph.target_classes[nodes]]
    return frozenset(int(producer) for producer in producers if producer >= 0)


def _find_obstacles(comparison: Comparison, coverage: _Coverage) -> list[str]:
    """Return why nothing that differs means anything, as a sentence, if there is such a reason."""
    alignment = comparison.alignment
    obstacles = _describe_checksum_side(alignment.target, alignment.reference)
    if not obstacles:
        obstacles = _describe_foreign_models(alignment, coverage)
    if not obstacles and comparison.baseline and comparison.baseline.unusable:
        obstacles = [comparison.baseline.unusable]
    return obstacles


def _describe_checksum_side(target: Flow, reference: Flow) -> list[str]:
    """Return a sentence if one side has statistics and the other has only checksums."""
    sides_without_numbers = [
        side
        for side, flow in (("target", target), ("reference", reference))
        if len(flow.classes) and flow.classes[["max", "norm"]].isna().all(axis=None)
    ]
    if len(sides_without_numbers) != 1:
        return []
    return [
        f"the {sides_without_numbers[0]} recorded only checksums, the other side none: "
        "dump its statistics or tensors"
    ]


def _describe_foreign_models(alignment: Alignment, coverage: _Coverage) -> list[str]:
    """Return a sentence if the two dumps may not be of one model.

    Dumps with the same matrices of weights are, even if little of what follows has a partner: the
    steps of a recurrence that differ from the first one on.
    """
    forward_shares = _list_shares(coverage, FORWARD)
    shares = forward_shares or _list_shares(coverage, BACKWARD)
    if max(shares, default=0.0) >= _MIN_SHARE_OF_ONE_MODEL or _have_equal_weights(alignment):
        return []
    return [
        f"only {max(forward_shares, default=0.0):.0%} of either side's forward ops have a partner: "
        "are these dumps of one model?"
    ]


def _have_equal_weights(alignment: Alignment) -> bool:
    """Return whether most matrices that the forward passes read and nothing computed are equal.

    On a side that names its parameters, these are counted: inputs that an op without a record
    computed, such as the parts of a loop over a tensor, are no weights.
    """
    values = alignment.classes["target"][alignment.classes["evidence"] == "value"]
    equal_values = set(values.tolist())
    partners = {alignment.partners[value] for value in equal_values}
    sides = ((alignment.target, equal_values), (alignment.reference, partners))
    for flow, equal_on_side in sides:
        matrices = [
            value
            for value, shape in enumerate(flow.shapes)
            if shape is not None
            and len(shape) > 1
            and is_graph_input(flow, value)
            and is_floating(str(flow.list_column("dtype")[value]))
            and any(flow.phases[op] == FORWARD for op in flow.consumers[value])
        ]
        names = flow.list_column("parameter")
        matrices = [value for value in matrices if names[value]] or matrices
        n_equal = sum(value in equal_on_side for value in matrices)
        if n_equal < _MIN_EQUAL_MATRICES or n_equal < _MIN_SHARE_OF_EQUAL_WEIGHTS * len(matrices):
            return False
    return True


def _list_shares(coverage: _Coverage, phase: str) -> list[float]:
    """Return the share of compared ops of each side that has the phase."""
    return [phases[phase]["share"] for phases in coverage.values() if phase in phases]


def _describe_bridges(bridges: Counter[str]) -> str:
    """Return a sentence on the missing edges that were bridged, by evidence."""
    counts = [f"{n} by {_BRIDGE_EVIDENCE[evidence]}" for evidence, n in bridges.most_common()]
    return f"missing edges were bridged: {', '.join(counts)}"


def _find_coverage_gaps(
    coverage: _Coverage, index_ops: Mapping[str, int], min_coverage: float
) -> list[str]:
    """Return a sentence for each phase of a side that is compared too little to be 'aligned'.

    ``index_ops`` of the forward phase do not count, see :func:`count_index_ops`.
    """
    gaps = []
    for phase in (FORWARD, BACKWARD):
        if phase == BACKWARD and not all(phase in phases for phases in coverage.values()):
            continue
        for side, phases in coverage.items():
            counts = phases.get(phase)
            if counts is None:
                gaps.append(f"the {side} has no {phase} op with a result that can be compared")
                continue
            share = _compute_share(counts, index_ops[side] if phase == FORWARD else 0)
            if share < min_coverage:
                gaps.append(
                    f"only {share:.0%} of the {side}'s {phase} ops could be compared or "
                    f"reconverged; {min_coverage:.0%} are required"
                )
    return gaps


def _compute_share(counts: Mapping[str, float], n_index_ops: int = 0) -> float:
    """Return the share of ops that were compared or reconverged."""
    n_ops = counts["ops"] - n_index_ops
    return (counts["compared"] + counts["reconverged"]) / n_ops if n_ops else 0.0


def _describe_index_ops(
    coverage: _Coverage, index_ops: Mapping[str, int], min_coverage: float
) -> list[str]:
    """Return a sentence for each side whose share would be too small with its index ops."""
    return [
        f"{index_ops[side]} forward ops of the {side} make up indices or masks that no compared "
        "value is computed from in the record: they were not compared, and do not count"
        for side, phases in coverage.items()
        if FORWARD in phases and _compute_share(phases[FORWARD]) < min_coverage and index_ops[side]
    ]


def _describe_isolated(findings: Sequence[Finding]) -> list[str]:
    """Return a sentence if values differ although everything computed from them agrees."""
    titles = [finding.title for finding in findings if finding.kind == "isolated"]
    if not titles:
        return []
    subject = "1 value differs without consequence"
    if len(titles) > 1:
        subject = f"{len(titles)} values differ without consequence, first"
    return [f"{subject}: {titles[0]}; check the records with dumpdiff verify"]


def _describe_silent_scalars(comparison: Comparison, findings: Sequence[Finding]) -> list[str]:
    """Return sentences on scalar arguments that differ although the results of the ops agree.

    Their effect is below the noise, or the result was not recorded. Each may still be a fault.
    """
    finding_ops = {op for finding in findings for op in finding.target_ops}
    names_t = comparison.alignment.target.trace.ops["name"].to_numpy()
    names_r = comparison.alignment.reference.trace.ops["name"].to_numpy()
    sentences = []
    for row in comparison.scalars.to_dict("records"):
        name_t, name_r = names_t[row["target_op"]], names_r[row["reference_op"]]
        if name_t not in finding_ops:
            sentences.append(
                f"{format_argument(row['argument'])} of {name_t} is {row['target']:.6g}, "
                f"of {name_r} {row['reference']:.6g}"
            )
    n_more = len(sentences) - _MAX_SCALAR_NOTES
    if n_more > 0:
        return [*sentences[:_MAX_SCALAR_NOTES], f"{n_more} more scalar arguments differ"]
    return sentences


def _describe_uncompared_phases(coverage: _Coverage) -> list[str]:
    """Return a sentence for each phase that both sides recorded and nothing was compared of.

    Of the optimizer, see ``uncompared_updates``.
    """
    sentences = []
    for phase in coverage["target"]:
        is_common = phase in coverage["reference"] and phase != OPTIMIZER
        if is_common and not any(phases[phase]["compared"] for phases in coverage.values()):
            sentences.append(
                f"both sides recorded {phase} ops, but none could be compared: "
                "the verdict does not cover them"
            )
    return sentences


def _summarize_side(comparison: Comparison, side: int) -> Side:
    """Return the target (0) or the reference (1) in figures, with all its problems."""
    flow = (comparison.alignment.target, comparison.alignment.reference)[side]
    trace = flow.trace
    problems = (*trace.problems, *flow.problems)
    n_read = n_files = 0
    if comparison.checks is not None:
        checks = comparison.checks[side]
        problems += checks.list_problems(problems)
        n_read, n_files = checks.files.n_read, checks.files.n_files
    elif side == 0:
        problems += comparison.problems
    return Side(trace.source, len(trace.ops), len(trace.tensors), problems, n_read, n_files)


def _collect_reader_details(flow: Flow, side: str) -> dict[str, object]:
    details = flow.trace.source.details
    return {f"{side}_{name}": details[name] for name in _READER_DETAILS if name in details}


def _compute_noise_floor(comparison: Comparison, state: Objects) -> float:
    """Return the median error of the agreeing pairs, NaN if none agrees.

    Pairs without error count only if there are no others.
    """
    pairs = comparison.pairs
    is_measured = (state[: len(pairs)] == AGREEING) & (pairs["metric"] != "mismatches").to_numpy()
    errors = pairs["error"].to_numpy()[is_measured]
    if len(errors) == 0:
        return float("nan")
    positive_errors = errors[errors > 0]
    return float(np.median(positive_errors)) if len(positive_errors) else 0.0
