"""Comparisons of dumps, checkpoints and updates as stages of a triage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.finding import Finding
from ..model.stage import Stage
from .dump_evidence import DumpEvidence
from .likelihoods import Place

if TYPE_CHECKING:
    from ..optimizers.comparison import UpdateComparison
    from ..weight_comparison import WeightsResult

#: The passes of a dump, which have a stage each.
PHASES: tuple[Place, ...] = ("forward", "backward")


def build_dump_stages(dumps: DumpEvidence) -> tuple[Stage, Stage]:
    """Return the stages of the forward and of the backward pass."""
    return _build_phase_stage(dumps, "forward"), _build_phase_stage(dumps, "backward")


def _build_phase_stage(dumps: DumpEvidence, phase: str) -> Stage:
    """Return the stage of one pass.

    It differs if the pass has a finding that is not isolated. It agrees if it has no finding and
    enough of it was compared.
    """
    findings = select_phase_findings(dumps, phase)
    missing = [*_list_isolated_titles(dumps, phase), *_find_coverage_gaps(dumps, phase)]
    if findings:
        evidence = tuple(_list_evidence(findings))
        return Stage(phase, "differ", findings[0].title, evidence, tuple(missing))
    if phase == "backward" and select_phase_findings(dumps, "forward"):
        cause = "the forward pass diverges already, and the backward pass follows from it"
        missing = [cause, *missing]
    if missing:
        return Stage(phase, "inconclusive", missing[0], (), tuple(missing))
    coverage = _format_coverage(dumps, phase)
    differing_values = dumps.differing_values.get(phase, {})
    if differing_values:
        counts = ", ".join(f"{count} {state}" for state, count in differing_values.items())
        headline = f"{phase} values agree, except {counts}; compared: {coverage}"
        return Stage(phase, "agree", headline)
    return Stage(phase, "agree", f"every compared {phase} value agrees: {coverage}")


def select_phase_findings(dumps: DumpEvidence, phase: str) -> list[Finding]:
    """Return the divergences of one pass, the first one first.

    A finding that belongs to no pass alone counts as forward. An isolated difference is no
    divergence: nothing follows from it.
    """
    return [
        finding
        for finding in dumps.findings
        if finding.kind != "isolated" and _find_phase(finding) == phase
    ]


def _list_isolated_titles(dumps: DumpEvidence, phase: str) -> list[str]:
    """Return the titles of the isolated differences of one pass."""
    return [
        finding.title
        for finding in dumps.findings
        if finding.kind == "isolated" and _find_phase(finding) == phase
    ]


def _find_phase(finding: Finding) -> str:
    return finding.phase if finding.phase in (*PHASES, "optimizer") else "forward"


def _list_evidence(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(finding.title)
        if finding.causes:
            cause = finding.causes[0]
            lines.append(f"why ({cause.name}): {cause.text}")
    return lines


def _find_coverage_gaps(dumps: DumpEvidence, phase: str) -> list[str]:
    """Say where too little was compared for agreement; nothing if enough was."""
    gaps = []
    for side in ("target", "reference"):
        counts = dumps.coverage.get(side, {}).get(phase)
        if counts is None or not counts["ops"]:
            gaps.append(f"the {side}'s dump has no {phase} ops")
            continue
        coverage = _compute_share(counts)
        if coverage < dumps.min_coverage:
            gaps.append(
                f"only {coverage:.0%} of the {side}'s {phase} ops could be compared,"
                f" {dumps.min_coverage:.0%} are required"
            )
    if dumps.verdict == "inconclusive" and not gaps:
        gaps += dumps.notes[:1]
    return gaps


def compute_phase_coverage(dumps: DumpEvidence, phase: str) -> float:
    """Return the share of the ops of a pass that were compared, of two sides the smaller one."""
    shares = []
    for side in ("target", "reference"):
        counts = dumps.coverage.get(side, {}).get(phase)
        shares.append(_compute_share(counts) if counts is not None and counts["ops"] else 0.0)
    return min(shares)


def _compute_share(counts: Mapping[str, float]) -> float:
    """Return the share of ops that were compared, or that reconverged."""
    return (counts["compared"] + counts["reconverged"]) / counts["ops"]


def _format_coverage(dumps: DumpEvidence, phase: str) -> str:
    parts = []
    for side in ("target", "reference"):
        counts = dumps.coverage[side][phase]
        values = f"{counts['compared_values']:.0f} of {counts['values']:.0f} values"
        ops = f"{counts['compared']:.0f} of {counts['ops']:.0f} ops"
        parts.append(f"{values} and {ops} of the {side}")
    return ", ".join(parts)


def build_weights_stage(result: WeightsResult) -> Stage:
    """Return the comparison of two checkpoints as a stage.

    Its evidence is every mistake, once for all layers, then the missing parameters.
    """
    from ..weight_comparison.summary import format_headline, group_mistakes

    evidence = [
        f"{mistake.parameter}: {mistake.message}" for mistake in group_mistakes(result.mistakes)
    ]
    evidence += [f"{name}: missing" for name in result.missing]
    unpaired = tuple(f"{name}: not in the reference" for name in result.unknown)
    return Stage("weights", result.verdict, format_headline(result), tuple(evidence), unpaired)


def build_optimizer_stage(comparison: UpdateComparison) -> Stage:
    """Return the comparison of two runs' updates as a stage with the differences as evidence."""
    from ..optimizers.summary import format_headline

    differences = tuple(difference.summary for difference in comparison.differences)
    return Stage("optimizer", comparison.verdict, format_headline(comparison), differences)
