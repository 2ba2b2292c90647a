"""The dump path from two dumps to judged pairs: read, align, compare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import readers
from ..alignment import Alignment, PreparedSide, align, align_sides, prepare_side
from ..comparison import Comparison, Spread, compare_pairs, measure_spread
from ..graph import Flow, build_flow
from ..graph.statistics import choose_common_norm
from ..model.background import Background
from ..model.errors import DumpError
from ..readers.parts import Part
from ..rulebook import Rules
from ..sharding import has_other_batches
from ..verification import Check, TraceChecks, check_trace, find_identity
from .inputs import Candidates, Inputs, PathLike
from .layouts import (
    Layouts,
    describe_layouts,
    find_layouts,
    merge_layouts,
    merge_micro_batches,
)
from .progress import Progress, narrow_progress, report_progress
from .sides import read_sides

if TYPE_CHECKING:
    import pandas as pd

    from ..model.result import Baseline
    from ..model.trace import Problem

#: What is identical on both sides -> what that means for the answer.
_IDENTITIES = {
    "dump": "target and reference are the same dump: that they agree says nothing",
    "numbers": "every recorded number of the two dumps is identical: are they copies of one run?",
}
_SAME_BASELINE = (
    "the baseline has the same numbers as the reference: its spread is 0, and it allows nothing"
)
_UNUSED_RELATIONS = (
    "relations between ranks are given, but both runs have the same layout: nothing was merged, and"
    " no relation was used"
)


def read_prepared_sides(
    inputs: Inputs, parts: tuple[Part, Part], progress: Progress | None
) -> tuple[tuple[PreparedSide, PreparedSide], tuple[TraceChecks, TraceChecks], list[str]]:
    """Read both sides; return what the alignment needs of them, the checks of files, and remarks.

    Narrowed dumps complete them, and checkpoints name the parameters, if there are any. Checks of
    records are added if all files are to be read for them.
    """
    sides = read_sides(inputs, parts, progress)
    remarks = [remark for side in sides for remark in side.remarks]
    target, reference = (side.prepared for side in sides)
    traces, norm_remark = choose_common_norm([target.flow.trace, reference.flow.trace])
    if norm_remark:
        remarks.append(norm_remark)
        target = prepare_side(build_flow(traces[0]), inputs.book, is_target=True)
        reference = prepare_side(build_flow(traces[1]), inputs.book, is_target=False)
    return (target, reference), (sides[0].checks, sides[1].checks), remarks


def compare_dumps(
    inputs: Inputs,
    progress: Progress | None,
    candidates: Candidates | None = None,
    layouts: Layouts | None = None,
) -> Comparison:
    """Read, align and compare two dumps, or the ``candidates`` among their parts.

    With a baseline, the differences between two runs of the reference are allowed. ``layouts`` is
    what :func:`find_layouts` returned, if it was called before.
    """
    all_parts = inputs.find_parts() if candidates is None else candidates
    layouts = layouts or find_layouts(inputs, all_parts)
    if layouts is not None:
        return _compare_layouts(inputs, layouts, progress)
    parts = inputs.choose_of_parts(all_parts)
    sides, checks, narrowed_remarks = read_prepared_sides(inputs, parts, progress)
    flows = sides[0].flow, sides[1].flow
    # their results are not needed before the comparison is complete; --verify has made them
    pending_records = None if inputs.verify else Background(_check_records, checks, inputs.book)
    merged_runs = None
    if inputs.baseline is None and has_other_batches(*flows):
        merged_runs = merge_micro_batches(flows, inputs.book)
        flows = (build_flow(merged_runs[0].trace), build_flow(merged_runs[1].trace))
        sides = (
            prepare_side(flows[0], inputs.book, is_target=True),
            prepare_side(flows[1], inputs.book, is_target=False),
        )
    unused_rules = merged_runs is None and any(inputs.book.relations.values())
    remarks = [
        *narrowed_remarks,
        *([_UNUSED_RELATIONS] if unused_rules else []),
        *describe_layouts(merged_runs or ()),
        *_describe_identity(flows),
        *_describe_unread_parts(all_parts, parts),
    ]
    spread = None
    if inputs.baseline is not None:
        baseline = _read_baseline(inputs.baseline, parts[1], progress)
        if find_identity(baseline.trace, flows[1].trace):
            remarks.append(_SAME_BASELINE)
        spread = _measure_baseline(baseline, flows[1], inputs.book, progress)
    report_progress(progress, "aligning", 0.0)
    alignment = align_sides(*sides, inputs.book)
    comparison = _compare_pairs(alignment, inputs, spread, progress)
    if pending_records is not None:
        records_t, records_r = pending_records.get_reply()
        checks = replace(checks[0], records=records_t), replace(checks[1], records=records_r)
    return replace(comparison, checks=checks, remarks=tuple(remarks), merged=merged_runs)


def _compare_pairs(
    alignment: Alignment, inputs: Inputs, spread: Spread | None, progress: Progress | None
) -> Comparison:
    """Compare the pairs of an alignment; statistics while their dataflow is joined."""
    has_files = any(
        (flow.tensors["file"] != "").any() for flow in (alignment.target, alignment.reference)
    )
    if has_files:  # the checks of files are made where these are opened
        move_bar = narrow_progress(progress, "comparing")
        return compare_pairs(alignment, inputs.book, move_bar, spread, inputs.inheritance)
    report_progress(progress, "comparing", 0.0)
    pending_pairs = Background(_compare_statistics, alignment, inputs, spread)
    _ = alignment.joint_dataflow  # what follows needs it, and the comparison does not
    return Comparison(alignment, *pending_pairs.get_reply())


def _compare_statistics(
    alignment: Alignment, inputs: Inputs, spread: Spread | None
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Problem, ...], Baseline | None]:
    """Return the fields of a comparison that hold no alignment."""
    comparison = compare_pairs(alignment, inputs.book, None, spread, inputs.inheritance)
    return comparison.pairs, comparison.scalars, comparison.problems, comparison.baseline


def _check_records(
    checks: tuple[TraceChecks, TraceChecks], rules: Rules
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """Check the records of both sides."""
    return check_trace(checks[0].trace, rules), check_trace(checks[1].trace, rules)


def _compare_layouts(inputs: Inputs, layouts: Layouts, progress: Progress | None) -> Comparison:
    """Merge the ranks of each run to one run, and compare these.

    Raises DumpError if something is asked for that only works on single ranks.
    """
    for option, value in (
        ("--baseline", inputs.baseline),
        ("--weights-target", inputs.weights_target),
        ("--weights-reference", inputs.weights_reference),
        ("--verify", inputs.verify),
        ("--narrowed", inputs.narrowed),
    ):
        if value:
            raise DumpError(
                f"the two runs have other layouts, so their ranks are merged, and {option} works on"
                " single ranks; leave it out, or choose a rank with --rank"
            )
    merged_runs, checks = merge_layouts(inputs, layouts, progress)
    # all ranks are read again from their common path
    paths = (inputs.target, inputs.reference)
    traces = [
        replace(merged.trace, source=replace(merged.trace.source, path=str(path)))
        for merged, path in zip(merged_runs, paths, strict=True)
    ]
    flows = [build_flow(trace) for trace in traces]
    report_progress(progress, "aligning", 0.0)
    alignment = align(flows[0], flows[1], inputs.book)
    move_bar = narrow_progress(progress, "comparing")
    comparison = compare_pairs(alignment, inputs.book, move_bar, inheritance=inputs.inheritance)
    remarks = tuple(describe_layouts(merged_runs))
    return replace(comparison, checks=checks, remarks=remarks, merged=merged_runs)


def _describe_identity(flows: tuple[Flow, Flow]) -> list[str]:
    """Return a sentence if the comparison of the two dumps says nothing."""
    identity = find_identity(flows[0].trace, flows[1].trace)
    return [_IDENTITIES[identity]] if identity else []


def _describe_unread_parts(all_parts: Candidates, parts: tuple[Part, Part]) -> list[str]:
    """Return a sentence for each dump that holds more than what was compared."""
    sentences = []
    for side, side_parts, part in zip(("target", "reference"), all_parts, parts, strict=True):
        place = readers.describe_unread_parts(side_parts, part)
        if place:
            sentences.append(f"of the {side}, {place} was compared; the rest was not read")
    return sentences


def _read_baseline(baseline: PathLike, part: Part, progress: Progress | None) -> Flow:
    """Read the same step, rank and graph of another run of the reference."""
    rank = None if part.is_unranked else part.rank
    baseline_part, _ = readers.choose_parts(
        readers.find_parts(baseline, accept_tensors=True),
        [part],
        step=part.step,
        rank=rank,
        graph=part.graph,
        side_names=("baseline", "reference"),
    )
    report_progress(progress, "reading the baseline", 0.0)
    baseline_trace = readers.read_part(baseline_part)
    return build_flow(baseline_trace, narrow_progress(progress, "statistics of the baseline"))


def _measure_baseline(
    baseline: Flow, reference: Flow, rules: Rules, progress: Progress | None
) -> Spread:
    """Compare another run of the reference with the reference."""
    alignment = align(baseline, reference, rules)
    comparison = compare_pairs(
        alignment, rules, narrow_progress(progress, "comparing the baseline")
    )
    return measure_spread(comparison)
