"""Findings with causes: the arrays are gathered, the hypotheses tried, the answers ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..comparison import Comparison
from ..model.formatting import number
from ..model.finding import Cause, Finding
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..rulebook import Rules
from .comparison_index import ValuePair, ComparisonIndex, find_region_pairs
from .faulty_side import find_faulty_side, recompute_last_ops
from .hypotheses import HYPOTHESES
from .cause_ranking import rank_causes
from .fault_case_builder import MAX_ELEMENTS, build_fault_cases
from .statistics_causes import find_causes_in_statistics

NO_EXPLANATION = "no hypothesis explains this"
#: What a backward op holds is no other form of what a forward op made: such a pair tells that the runs part, not how.
_OTHER_THINGS = ((FORWARD, BACKWARD), (BACKWARD, FORWARD))
_STATISTICS = ("max", "min", "mean", "norm")


def explain(
    comparison: Comparison, rules: Rules, findings: Sequence[Finding]
) -> tuple[Finding, ...]:
    """The findings, each with ``side`` and ``causes`` as far as the dumps allow, or why not (``unexplained``)."""
    around = ComparisonIndex(comparison, rules)
    return tuple(_explained(around, finding) for finding in findings)


def _explained(around: ComparisonIndex, finding: Finding) -> Finding:
    if finding.causes:  # known from the names alone
        return finding
    sought = around.find_value_pair(finding)
    if sought is not None and around.get_phases(sought) in _OTHER_THINGS:
        return replace(finding, side="unknown", unexplained=NO_EXPLANATION)
    if sought is None:
        return replace(
            finding,
            side="unknown",
            unexplained="the two tensors cannot be compared, so nothing is tried",
        )
    with np.errstate(all="ignore"):
        seen = list(build_fault_cases(around, finding, sought))
        if not seen:
            return _by_statistics(around, finding, sought)
        side, found = rank_causes(seen, HYPOTHESES)
        if not found:
            side, found = _inner_causes(around, finding, sought)
        own = recompute_last_ops(seen)
    side = find_faulty_side(own, finding.tolerance) or side
    said = [f"{role}'s to {number(gap)}" for role, gap in own.items()]
    evidence = (
        (f"own inputs, recomputed in float64, give the {' and the '.join(said)}",) if said else ()
    )
    return replace(
        finding,
        side=side,
        causes=found,
        evidence=(*finding.evidence, *evidence),
        unexplained="" if found else NO_EXPLANATION,
    )


def _inner_causes(
    around: ComparisonIndex, finding: Finding, sought: ValuePair
) -> tuple[str, tuple[Cause, ...]]:
    """The first pair of values within the region that a hypothesis explains, checked against the faithful side."""
    for pair in find_region_pairs(around, sought):
        side, found = rank_causes(list(build_fault_cases(around, finding, pair)), HYPOTHESES, checked_only=True)
        if found:
            return side, found
    return "unknown", ()


def _by_statistics(around: ComparisonIndex, finding: Finding, sought: ValuePair) -> Finding:
    """What can be said where one of the two whole tensors is missing or too large."""
    tables = [
        flow.tensors.iloc[tensor] for flow, tensor in zip(around.flows, sought.tensors, strict=True)
    ]
    numbers = [[float(table[name]) for name in _STATISTICS] for table in tables]
    found = find_causes_in_statistics(numbers[0], numbers[1], finding.tolerance, _names(finding))
    sizes = [int(table["size"]) for table in tables]
    why = (
        f"more than {MAX_ELEMENTS:,} elements are not recomputed"
        if max(sizes) > MAX_ELEMENTS
        else "whole tensors of both sides are needed to say why: record them (task tensor)"
    )
    return replace(
        finding,
        side="target" if found else "unknown",
        causes=found,
        unexplained="" if found else why,
    )


def _names(finding: Finding) -> tuple[str, str]:
    """What zeros and a factor are called there."""
    if finding.is_given:
        return "zeroed", "weight-scaled"
    if finding.phase == FORWARD:
        return "zeroed", "constant-factor"
    return "gradient-stopped", "clip" if finding.phase == OPTIMIZER else "gradient-scaled"
