"""The comparison of two dumps as two stages of a triage: the forward pass, then the backward pass."""

from __future__ import annotations

from ..model.defaults import MIN_COVERAGE
from ..model.result import Result
from ..model.finding import Finding
from ..model.stage import Stage
from ..model.verdict import Verdict

PHASES = ("forward", "backward")


def build_dump_stages(result: Result) -> tuple[Stage, Stage]:
    """What a comparison of dumps says about either pass."""
    return build_phase_stage(result, "forward"), build_phase_stage(result, "backward")


def build_phase_stage(result: Result, phase: str) -> Stage:
    """One pass: differ if a finding lies in it, agree if none does and enough of it was compared."""
    found = select_phase_findings(result, phase)
    if found:
        return Stage(
            phase, "differ", found[0].title, tuple(_evidence(found)), tuple(_short(result, phase))
        )
    missing = tuple(_short(result, phase))
    if phase == "backward" and select_phase_findings(result, "forward"):
        missing = (
            "the forward pass parts already, and the backward pass follows from it",
            *missing,
        )
    verdict: Verdict = "inconclusive" if missing else "agree"
    headline = (
        missing[0]
        if missing
        else f"every {phase} value that was compared agrees: {_compared(result, phase)}"
    )
    return Stage(phase, verdict, headline, (), missing)


def select_phase_findings(result: Result, phase: str) -> list[Finding]:
    """The findings of one pass, first divergence first. What is shared by both passes counts as forward."""
    return [
        finding
        for finding in result.findings
        if finding.phase == phase
        or (phase == "forward" and finding.phase not in (*PHASES, "optimizer"))
    ]


def _evidence(findings: list[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(finding.title)
        lines += [f"why ({cause.name}): {cause.text}" for cause in finding.causes[:1]]
    return lines


def _short(result: Result, phase: str) -> list[str]:
    """Where too little was compared for agreement."""
    wanted = float(result.details.get("min_coverage", MIN_COVERAGE))
    said = []
    for side in ("target", "reference"):
        figures = result.coverage.get(side, {}).get(phase)
        if figures is None or not figures["ops"]:
            said.append(f"the {side}'s dump holds no {phase} ops")
        elif (share := (figures["compared"] + figures["healed"]) / figures["ops"]) < wanted:
            said.append(
                f"only {share:.0%} of the {side}'s {phase} ops could be compared, {wanted:.0%} are wanted"
            )
    if result.verdict == "inconclusive" and not said:
        said += result.notes[:1]
    return said


def _compared(result: Result, phase: str) -> str:
    parts = []
    for side in ("target", "reference"):
        figures = result.coverage[side][phase]
        parts.append(f"{figures['compared']:.0f} of {figures['ops']:.0f} ops of the {side}")
    return ", ".join(parts)
