"""Each stage of a triage as tables and lists, and the triage as a whole: what all reports for people are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...diagnosis.decision import SYMPTOMS
from ...diagnosis.dump_stages import PHASES, select_phase_findings
from ...diagnosis.evidence import STAGES, Evidence
from ...diagnosis.outcome import TriageResult
from ...model.finding import Finding
from ...model.formatting import number
from ...model.result import Result
from ...model.stage import Stage
from ..alignment.summary import format_side
from ..stages import checklist, data, logs, norms, optimizer, settings
from ..stages.sections import Block, ListBlock, TableBlock
from ..weights import text as weights

NOT_GIVEN = "not given"  #: the state of a stage that had nothing to look at

_FINDINGS = 10  #: of one pass that are listed


@dataclass(frozen=True)
class Section:
    """One stage: what it comes to, and what that rests on."""

    stage: Stage
    sides: (
        tuple[str, str] | None
    )  #: what target and reference are, where they are not the same for all stages
    parts: tuple[Block, ...]  #: none of them is empty


def build_sections(evidence: Evidence) -> tuple[Section, ...]:
    """The stages that were looked at, in order."""
    told = {name: (sides, tuple(filter(_full, parts))) for name, sides, parts in _told(evidence)}
    return tuple(
        Section(stage, *told.get(stage.name, (None, _plain(stage)))) for stage in evidence.stages
    )


def _plain(stage: Stage) -> tuple[Block, ...]:
    """A stage that could not be finished: what it says itself."""
    return tuple(
        filter(
            _full, (ListBlock("evidence", stage.evidence), ListBlock("not known", stage.missing))
        )
    )


def _told(evidence: Evidence) -> Iterator[tuple[str, tuple[str, str] | None, Iterable[Block]]]:
    if evidence.settings is not None:
        yield (
            "settings",
            settings.format_sides(evidence.settings),
            settings.build_blocks(evidence.settings),
        )
    if evidence.checklist is not None:
        yield "checklist", None, checklist.build_blocks(evidence.checklist)
    if evidence.data is not None:
        yield "data", data.format_sides(evidence.data), data.build_blocks(evidence.data)
    if evidence.logs is not None:
        yield "logs", logs.format_sides(evidence.logs), logs.build_blocks(evidence.logs)
    if evidence.norms is not None:
        yield (
            "norms",
            norms.format_sides(evidence.norms),
            norms.build_blocks(evidence.norms, verbose=True),
        )
    if evidence.weights is not None:
        yield (
            "weights",
            weights.format_sides(evidence.weights),
            weights.build_blocks(evidence.weights),
        )
    if evidence.dumps is not None:
        for phase in PHASES:
            dumps = evidence.dumps
            yield (
                phase,
                (format_side(dumps.target), format_side(dumps.reference)),
                _findings(dumps, phase),
            )
    if evidence.optimizer is not None:
        yield (
            "optimizer",
            optimizer.format_sides(evidence.optimizer),
            optimizer.build_blocks(evidence.optimizer),
        )


def _full(part: Block) -> bool:
    return bool(part.rows if isinstance(part, TableBlock) else part.lines)


def _findings(result: Result, phase: str) -> Iterator[Block]:
    """The findings of one pass, first divergence first, and what the first rests on."""
    found = select_phase_findings(result, phase)
    columns = ("target", "reference", "error", "tolerance", "why")
    yield TableBlock("finding", columns, tuple(_row(finding) for finding in found[:_FINDINGS]))
    if len(found) > _FINDINGS:
        yield ListBlock(
            "more", (f"{len(found) - _FINDINGS} more findings: dumpdiff align shows them",)
        )
    for finding in found[:1]:
        source = (f"called from {line} ({role})" for role, line in finding.source.items())
        yield ListBlock("the first of them", (*finding.evidence, *source))


def _row(finding: Finding) -> tuple[str, ...]:
    why = finding.causes[0].text if finding.causes else finding.unexplained
    error = number(finding.metrics.get("error", float("nan")))
    ops = [names[-1] if names else "-" for names in (finding.target_ops, finding.reference_ops)]
    return finding.scope or finding.kind, *ops, error, number(finding.tolerance), why


def list_stage_states(evidence: Evidence) -> Mapping[str, str]:
    """Every stage in order, also those that were not looked at: agree, differ, inconclusive, not given."""
    seen = {stage.name: stage.verdict for stage in evidence.stages}
    return {name: seen.get(name, NOT_GIVEN) for name in STAGES}


def build_overview(evidence: Evidence) -> TableBlock:
    """Every stage with its state and what it says, or why it was not looked at."""
    said = {stage.name: stage.headline for stage in evidence.stages}
    rows = (
        (name, state, said.get(name, evidence.skipped.get(name, "")))
        for name, state in list_stage_states(evidence).items()
    )
    return TableBlock("stage", ("", "what it found"), tuple(rows))


def build_conclusion(triaged: TriageResult) -> tuple[ListBlock, ...]:
    """What the conclusion rests on, what else differs, what was ruled out and by what, what is not known.

    That a stage was given nothing is said by the :func:`overview` of all stages.
    """
    decision = triaged.decision
    ruled = tuple(f"{one.place}, by {one.by}: {one.said}" for one in decision.ruled_out)
    not_given = {f"{name}: {why}" for name, why in triaged.evidence.skipped.items()}
    parts = (
        ListBlock("because", decision.evidence),
        ListBlock("also different", decision.also),
        ListBlock("ruled out", ruled),
        ListBlock("not known", tuple(line for line in decision.missing if line not in not_given)),
    )
    return tuple(filter(_full, parts))


def format_symptom(triaged: TriageResult) -> str:
    """What the runs show, in words."""
    return SYMPTOMS[triaged.decision.symptom]
