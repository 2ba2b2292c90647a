"""Explain findings: load their tensors, try the hypotheses and rank the causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..comparison import Comparison
from ..model.finding import Finding
from ..model.formatting import format_number
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..operators import INCOMPLETE_KINDS, recompute
from .cause_search import CauseSearch, merge_exclusions, search_causes
from .comparison_index import (
    ComparisonIndex,
    ValuePair,
)
from .element_places import find_order
from .fault_case import FaultCase, compute_residual
from .fault_case_builder import build_fault_cases, build_routing_cases
from .finding_arrays import MAX_ELEMENTS
from .hypotheses import (
    COMPOSITE_HYPOTHESES,
    HYPOTHESES,
    LAST_HYPOTHESES,
    OMISSION_HYPOTHESES,
    PATH_HYPOTHESES,
    RECURRENCE_HYPOTHESES,
    ROUTING_HYPOTHESES,
    SCAN_HYPOTHESES,
)
from .recurrent_steps import find_step_pairs
from .statistics_explanation import explain_by_statistics
from .tried_pairs import (
    find_bypass_pairs,
    find_following_pairs,
    find_head_pairs,
    find_region_pairs,
    find_state_pairs,
    have_common_source,
)
from .update_rules import find_other_rule

#: A cause without a fitted number is preferred to one with an odd number up to this many times
#: its residual.
_MAX_RESIDUAL_RATIO = 10
#: Share of the error of a finding that may be left if the region is run with the inner value that
#: explains it: noise is amplified on the way.
_MAX_INNER_SHARE = 0.1
#: Pairs of a region, the nearest to agreement, whose own regions are run again with a change.
_MAX_COMPOSITE_PAIRS = 2
#: Components of a fused tensor that are explained one by one.
_MAX_PART_PAIRS = 1
#: The cause that says that both sides apply one step at different places.
_OTHER_ORDER = "layer-order"
NO_EXPLANATION = "no hypothesis explains this"
#: Of an isolated difference: a hypothesis about an operator would blame the model for a record.
_NO_OPERATOR = "what was computed from this value agrees, so no operator of the model is at fault"
#: A value of a backward op is never another form of a value of a forward op: such a pair shows that
#: the runs diverge, not how.
_INCOMPARABLE_PHASES = ((FORWARD, BACKWARD), (BACKWARD, FORWARD))
#: A side is faulty if its last op, recomputed from its own inputs, differs by more than this many
#: tolerances.
_FAULTY_SIDE_TOLERANCES = 2


def explain(comparison: Comparison, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with ``side`` and ``causes``, or the reason why they are ``unexplained``.

    What can be explained depends on what the dumps recorded.
    """
    index = ComparisonIndex(comparison)
    return tuple(_explain_finding(index, finding) for finding in findings)


def _explain_finding(index: ComparisonIndex, finding: Finding) -> Finding:
    if finding.causes:  # the names are enough to know them
        return finding
    value_pair = index.find_value_pair(finding)
    if value_pair is None:
        reason = "the two tensors cannot be compared, so no hypothesis is tried"
        return replace(finding, side="unknown", unexplained=reason)
    if index.get_phases(value_pair) in _INCOMPARABLE_PHASES:
        return replace(finding, side="unknown", unexplained=NO_EXPLANATION)
    if finding.kind == "isolated":
        return _explain_isolated(index, finding, value_pair)
    with np.errstate(all="ignore"):
        other_rule = find_other_rule(index, value_pair) if finding.phase == OPTIMIZER else None
        if other_rule is not None:
            return replace(finding, side="unknown", causes=(other_rule,))
        return _explain_by_values(index, finding, value_pair)


def _explain_by_values(index: ComparisonIndex, finding: Finding, value_pair: ValuePair) -> Finding:
    """Return the finding with what the hypotheses say of its whole tensors, or its statistics."""
    cases = list(build_fault_cases(index, finding, value_pair))
    if not cases:
        return _explain_by_statistics(index, finding, value_pair)
    search = _search_causes(index, finding, value_pair, cases)
    errors = recompute_last_ops(cases)
    evidence = finding.evidence
    if errors:
        evidence = (*evidence, _format_recomputation(errors))
    if search.excluded:
        evidence = (*evidence, _format_exclusions(search))
    return replace(
        finding,
        side=find_faulty_side(errors, finding.tolerance) or search.faulty_side,
        causes=search.causes,
        evidence=evidence,
        unexplained=_format_unexplained(search),
    )


def _search_causes(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair, cases: Sequence[FaultCase]
) -> CauseSearch:
    """Try the hypotheses on the value, then on its region, then on other values around it.

    The choice of a router comes first: what follows from it differs in many ways. Where operators
    of other kinds read the two values, what explains later ones counts more.
    """
    routing_cases = build_routing_cases(index, cases, value_pair)
    search = search_causes(routing_cases, ROUTING_HYPOTHESES)
    if search.causes:
        return search
    search = search_causes(cases, HYPOTHESES)
    if search.causes:
        later_search = _search_later_values(index, finding, value_pair)
        search = later_search if later_search.causes else search
    is_weak = search.has_odd_number and finding.phase == FORWARD
    if search.undecided or (search.causes and not is_weak):
        return search
    region_search = search_causes(cases, COMPOSITE_HYPOTHESES, checked_only=True)
    if search.causes:
        return _choose_search(search, region_search)
    if not region_search.causes:
        for other_search in _search_other_values(index, finding, value_pair, cases):
            if other_search.causes:
                return replace(other_search, excluded=())
        last_search = search_causes(cases, LAST_HYPOTHESES)
        if last_search.causes:
            return last_search
    return replace(region_search, excluded=merge_exclusions(search, region_search))


def _search_later_values(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair
) -> CauseSearch:
    """Return what explains the next values that follow from a pair on both sides.

    Operators of other kinds read the two values, so they are not of one quantity: 0.5 x of one form
    of gelu and 1.702 x of another are each other's multiples, which explains neither.
    """
    if finding.phase != FORWARD or index.have_common_consumers(value_pair):
        return CauseSearch()
    for later_pair in index.find_later_pairs(value_pair):
        cases = list(build_fault_cases(index, finding, later_pair))
        search = search_causes(cases, HYPOTHESES, checked_only=True)
        if search.causes and not search.has_odd_number:
            return search
    return CauseSearch()


def _choose_search(odd_search: CauseSearch, region_search: CauseSearch) -> CauseSearch:
    """Return the search of a region if it explains a finding without an odd number."""
    if not region_search.causes or region_search.has_odd_number:
        return odd_search
    limit = _MAX_RESIDUAL_RATIO * odd_search.causes[0].residual
    return region_search if region_search.causes[0].residual <= limit else odd_search


def _search_other_values(
    index: ComparisonIndex,
    finding: Finding,
    value_pair: ValuePair,
    finding_cases: Sequence[FaultCase],
) -> Iterator[CauseSearch]:
    """Yield what the hypotheses say of other pairs of values: in the region, and after it.

    What follows from a step that one side leaves out is one such pair. Last come the first steps of
    a recurrence. Only candidates that were checked against the faithful side count, and only values
    in the region that make the difference of its last one. A step that one side applies later is
    among what follows, so the others may show an order.
    """
    if finding.phase == BACKWARD:
        yield search_causes(finding_cases, PATH_HYPOTHESES, checked_only=True)
    yield from _search_pairs(index, finding, index.list_part_pairs(value_pair)[:_MAX_PART_PAIRS])
    cases_of_pairs: list[list[FaultCase]] = []
    for region_pair in find_region_pairs(index, value_pair):
        leading_cases, other_cases = _split_by_lead(index, finding, region_pair, finding_cases)
        yield _search_leading(index, finding, region_pair, finding_cases, leading_cases)
        if have_common_source(index, region_pair):
            cases_of_pairs.append(leading_cases)
        other_search = search_causes(other_cases, HYPOTHESES, checked_only=True)
        if other_search.causes and other_search.causes[0].name == _OTHER_ORDER:
            yield other_search
    if finding.phase == FORWARD:
        for state_pair in find_state_pairs(index, value_pair):
            cases = list(build_fault_cases(index, finding, state_pair))
            yield search_causes(cases, SCAN_HYPOTHESES, checked_only=True)
        for bypass_pair in find_bypass_pairs(index, value_pair):
            cases = list(build_fault_cases(index, finding, bypass_pair))
            yield search_causes(cases, OMISSION_HYPOTHESES, checked_only=True)
    yield from _search_pairs(index, finding, find_following_pairs(index, value_pair))
    yield from _search_pairs(index, finding, index.find_later_pairs(value_pair))
    if finding.phase == FORWARD:
        for step_pair in find_step_pairs(index):
            cases = list(build_fault_cases(index, finding, step_pair))
            yield search_causes(cases, RECURRENCE_HYPOTHESES, checked_only=True)
    for cases in cases_of_pairs[:_MAX_COMPOSITE_PAIRS]:
        yield search_causes(cases, COMPOSITE_HYPOTHESES, checked_only=True)
    yield from _search_heads(index, finding, value_pair, finding_cases)


def _search_pairs(
    index: ComparisonIndex, finding: Finding, value_pairs: Iterable[ValuePair]
) -> Iterator[CauseSearch]:
    """Yield what the hypotheses say of other pairs, if checked against the faithful side."""
    for value_pair in value_pairs:
        cases = list(build_fault_cases(index, finding, value_pair))
        for hypotheses in (HYPOTHESES, COMPOSITE_HYPOTHESES):
            yield search_causes(cases, hypotheses, checked_only=True)


def _search_leading(
    index: ComparisonIndex,
    finding: Finding,
    region_pair: ValuePair,
    finding_cases: Sequence[FaultCase],
    leading_cases: Sequence[FaultCase],
) -> CauseSearch:
    """Return what the hypotheses say of a pair of the region that may make its difference.

    A factor between the two says nothing if they are two quantities, of which one gets it later: it
    must be shown to make the difference.
    """
    search = search_causes(leading_cases, HYPOTHESES, checked_only=True)
    if not search.causes or "factor" not in search.causes[0].parameters:
        return search
    cases, _ = _split_by_lead(index, finding, region_pair, finding_cases, is_proved=True)
    return search_causes(cases, HYPOTHESES, checked_only=True)


def _search_heads(
    index: ComparisonIndex,
    finding: Finding,
    value_pair: ValuePair,
    finding_cases: Sequence[FaultCase],
) -> Iterator[CauseSearch]:
    """Yield what the hypotheses say of the first values of a region that make its difference."""
    for head_pair in find_head_pairs(index, finding, value_pair):
        cases, _ = _split_by_lead(index, finding, head_pair, finding_cases, is_proved=True)
        for hypotheses in (HYPOTHESES, COMPOSITE_HYPOTHESES):
            yield search_causes(cases, hypotheses, checked_only=True)


def _split_by_lead(
    index: ComparisonIndex,
    finding: Finding,
    region_pair: ValuePair,
    finding_cases: Sequence[FaultCase],
    *,
    is_proved: bool = False,
) -> tuple[list[FaultCase], list[FaultCase]]:
    """Return the cases of a pair of the region: those that make its difference, and the others.

    ``is_proved``: where that cannot be decided, they do not.
    """
    leading_cases: list[FaultCase] = []
    other_cases: list[FaultCase] = []
    cases = build_fault_cases(index, finding, region_pair)
    for case, finding_case in zip(cases, finding_cases, strict=False):
        is_leading = leads_to_difference(finding_case, case, region_pair, is_proved=is_proved)
        (leading_cases if is_leading else other_cases).append(case)
    return leading_cases, other_cases


def leads_to_difference(
    finding_case: FaultCase,
    inner_case: FaultCase,
    inner_pair: ValuePair,
    *,
    is_proved: bool = False,
) -> bool:
    """Return whether the faulty side's inner value makes the difference of the finding.

    The faithful side's operators between the two are run with it. If they give something else, the
    two sides compute different things from here on, and what explains the inner values is no cause:
    1.702 x and x / sqrt(2) are each other's multiples, and then one side takes a sigmoid and the
    other one an error function. If it cannot be decided, because the operators cannot be run, or
    other values of the region lead to its end as well, the answer is not ``is_proved``.
    """
    region = finding_case.long_region if is_proved else finding_case.region
    value = inner_pair.classes[0 if inner_case.faithful_side == "target" else 1]
    numbers = [] if region is None else [n for n, s in enumerate(region.steps) if s.value == value]
    if region is None or not numbers:
        return not is_proved
    if region.unchanged is None or not finding_case.matches_faithful(region.unchanged):
        return not is_proved
    if not is_proved and not region.is_bottleneck(numbers[0]):
        return True
    output = region.steps[numbers[0]].output
    is_found, order = find_order(output, inner_case.faithful)
    if not is_found:
        return not is_proved
    flat = inner_case.faulty.reshape(-1)
    if order is not None:
        flat = np.empty_like(flat)
        flat[order] = inner_case.faulty.reshape(-1)
    result = region.run(numbers[0], flat.reshape(output.shape))
    if result is None:
        return not is_proved
    residual = compute_residual(result, finding_case.faulty)
    return residual <= max(finding_case.limit, _MAX_INNER_SHARE * finding_case.error)


def _format_exclusions(search: CauseSearch) -> str:
    """Return which hypotheses are nearest among those that do not explain the value."""
    parts = [f"{item.name} leaves {format_number(item.residual)}" for item in search.excluded]
    return f"excluded: {', '.join(parts)}"


def _format_unexplained(search: CauseSearch) -> str:
    """Return why there is no cause, '' if there is one."""
    if search.causes:
        return ""
    if not search.undecided:
        return NO_EXPLANATION
    return f"undecided: {'; or '.join(cause.text for cause in search.undecided)}"


def _explain_isolated(index: ComparisonIndex, finding: Finding, value_pair: ValuePair) -> Finding:
    """Return the finding with the side whose record does not follow from its inputs, if any."""
    errors: Mapping[str, float] = {}
    is_result = finding.slots[0][0].startswith("output")
    if is_result:
        with np.errstate(all="ignore"):
            errors = recompute_last_ops(list(build_fault_cases(index, finding, value_pair)))
    evidence = finding.evidence
    if errors:
        evidence = (*evidence, _format_recomputation(errors))
    side = find_faulty_side(errors, finding.tolerance) or "unknown"
    reason = _NO_OPERATOR
    if side in ("target", "reference"):
        reason = f"the {side}'s record does not follow from its inputs; {reason}"
    return replace(finding, side=side, evidence=evidence, unexplained=reason)


def _format_recomputation(errors: Mapping[str, float]) -> str:
    parts = [f"the {side} differs by {format_number(error)}" for side, error in errors.items()]
    return f"last op recomputed in float64 from its own inputs: {', '.join(parts)}"


def recompute_last_ops(cases: Sequence[FaultCase]) -> Mapping[str, float]:
    """Return side -> error of the recorded output against the recomputed one.

    The last op of each side is recomputed in float64 from its recorded inputs; the error is a
    relative L2. The result is empty unless both sides end in the same kind of op and both can be
    recomputed. Otherwise an op whose record omits an attribute would be taken for a wrong result.
    Of a kind whose records omit what it computes, only agreement counts.
    """
    calls = [case.call for case in cases if case.call is not None]
    kinds = {call.kind for call in calls}
    if len(calls) < 2 or len(kinds) > 1:
        return {}
    errors = {}
    for case, call in zip(cases, calls, strict=True):
        output = recompute(call.kind, call.inputs, call.keywords, recorded_output=case.faithful)
        if output is None:
            return {}
        errors[case.faithful_side] = compute_residual(output, case.faithful)
    if kinds & INCOMPLETE_KINDS.keys() and max(errors.values()) > cases[0].limit:
        return {}
    return errors


def find_faulty_side(errors: Mapping[str, float], tolerance: float) -> str:
    """Return 'target', 'reference' or 'both'; '' if no error exceeds the noise."""
    limit = _FAULTY_SIDE_TOLERANCES * tolerance
    is_target_faulty = errors.get("target", 0.0) > limit
    is_reference_faulty = errors.get("reference", 0.0) > limit
    if is_target_faulty and is_reference_faulty:
        return "both"
    if is_target_faulty:
        return "target"
    if is_reference_faulty:
        return "reference"
    return ""


def _explain_by_statistics(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair
) -> Finding:
    """Explain a finding of which a whole tensor is missing or too large."""
    explanation = explain_by_statistics(index, finding, value_pair)
    if explanation is not None:
        side, cause = explanation
        return replace(finding, side=side, causes=(cause,), unexplained="")
    reason = "whole tensors of both sides are needed to explain this: record them (task tensor)"
    sizes = [
        int(flow.tensors["size"].iat[tensor])
        for flow, tensor in zip(index.flows, value_pair.tensors, strict=True)
    ]
    if max(sizes) > MAX_ELEMENTS:
        reason = f"tensors of more than {MAX_ELEMENTS:,} elements are not recomputed"
    return replace(finding, side="unknown", unexplained=reason)
