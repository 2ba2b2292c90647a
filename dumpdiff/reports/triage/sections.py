"""The stages of a triage, and its conclusion, as tables and lists for all reports to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...diagnosis.decision import SYMPTOMS
from ...diagnosis.dump_evidence import DumpEvidence
from ...diagnosis.evidence import STAGES, Evidence
from ...diagnosis.outcome import TriageResult
from ...diagnosis.stages import PHASES, select_phase_findings
from ...model.finding import Finding
from ...model.formatting import format_number
from ...model.run_result import RunResult
from ...model.stage import Stage
from ..alignment.summary import format_side
from ..formats.blocks import Block, ListBlock, TableBlock, translate_block
from ..language import translate
from ..runs.summary import format_scope
from ..sentences import translate_known_sentence, translate_sentence
from ..stages import checklist, data, logs, norms, optimizer, settings
from ..weights import text as weights

NOT_GIVEN = "not given"  #: the state of a stage that had nothing to compare

_MAX_FINDINGS = 10  #: findings of one phase that are listed

_Sides = tuple[str, str] | None


@dataclass(frozen=True)
class Section:
    """One stage: its conclusion, and the evidence for it."""

    stage: Stage
    sides: _Sides  #: what target and reference are, None if all stages have the same
    blocks: tuple[Block, ...]  #: none of them is empty


def build_sections(evidence: Evidence) -> tuple[Section, ...]:
    """Return the stages that were compared, in order."""
    contents = {}
    for name, sides, blocks in _build_contents(evidence):
        contents[name] = (sides, tuple(map(translate_block, _remove_empty(blocks))))
    sections = []
    for stage in evidence.stages:
        sides, blocks = contents.get(stage.name, (None, _build_unfinished(stage)))
        if sides is not None:
            target, reference = sides
            sides = translate_known_sentence(target), translate_known_sentence(reference)
        sections.append(Section(stage, sides, blocks))
    return tuple(sections)


def _build_unfinished(stage: Stage) -> tuple[Block, ...]:
    """Return what a stage that could not be finished says itself."""
    evidence = ListBlock("evidence", _translate_lines(stage.evidence))
    return _remove_empty((evidence, ListBlock("not known", _translate_lines(stage.missing))))


def _build_contents(evidence: Evidence) -> Iterator[tuple[str, _Sides, Iterable[Block]]]:
    """Yield (name, sides, blocks) of each stage that was compared."""
    if evidence.settings is not None:
        sides = settings.format_sides(evidence.settings)
        yield "settings", sides, settings.build_blocks(evidence.settings)
    if evidence.checklist is not None:
        yield "checklist", None, checklist.build_blocks(evidence.checklist)
    if evidence.data is not None:
        yield "data", data.format_sides(evidence.data), data.build_blocks(evidence.data)
    if evidence.logs is not None:
        yield "logs", logs.format_sides(evidence.logs), logs.build_blocks(evidence.logs)
    if evidence.norms is not None:
        sides = norms.format_sides(evidence.norms)
        yield "norms", sides, norms.build_blocks(evidence.norms, verbose=True)
    if evidence.weights is not None:
        sides = weights.format_sides(evidence.weights)
        yield "weights", sides, weights.build_blocks(evidence.weights)
    if evidence.dumps is not None:
        dumps = evidence.dumps
        sides = _format_dumps(dumps)
        for phase in PHASES:
            yield phase, sides, _build_findings(dumps, phase)
    if evidence.optimizer is not None:
        sides = optimizer.format_sides(evidence.optimizer)
        yield "optimizer", sides, optimizer.build_blocks(evidence.optimizer)


def _remove_empty(blocks: Iterable[Block]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if not _is_empty(block))


def _is_empty(block: Block) -> bool:
    return not (block.rows if isinstance(block, TableBlock) else block.lines)


def _format_dumps(dumps: DumpEvidence) -> tuple[str, str]:
    """Return what was compared of the target and of the reference."""
    result = dumps.result
    if isinstance(result, RunResult):
        scope = format_scope(result)
        return f"{scope}: {result.target}", f"{scope}: {result.reference}"
    return format_side(result.target), format_side(result.reference)


def _build_findings(dumps: DumpEvidence, phase: str) -> Iterator[Block]:
    """Yield the findings of one phase, first divergence first, and the evidence of the first."""
    findings = select_phase_findings(dumps, phase)
    columns = ("target", "reference", "error", "tolerance", "why")
    yield TableBlock("finding", columns, tuple(map(_list_cells, findings[:_MAX_FINDINGS])))
    n_more = len(findings) - _MAX_FINDINGS
    if n_more > 0:
        yield ListBlock(
            "more", (translate("{count} more findings: dumpdiff align shows them", count=n_more),)
        )
    if findings:
        first = findings[0]
        source = [
            translate("called from {line} ({side})", line=line, side=translate(side))
            for side, line in first.source.items()
        ]
        evidence = map(translate_sentence, first.evidence)
        yield ListBlock("the first of them", (*evidence, *source))


def find_first_finding(triaged: TriageResult) -> Finding | None:
    """Return the finding that the conclusion is about, None if it is not about a phase."""
    decision, dumps = triaged.decision, triaged.evidence.dumps
    if dumps is None or decision.cause not in PHASES or decision.stage != decision.cause:
        return None
    findings = select_phase_findings(dumps, decision.cause)
    return findings[0] if findings else None


def has_weaknesses(triaged: TriageResult) -> bool:
    """Return whether something makes the answer of the dumps doubtful."""
    dumps = triaged.evidence.dumps
    if dumps is None:
        return False
    results = dumps.result.tasks if isinstance(dumps.result, RunResult) else (dumps.result,)
    return any(result.weaknesses for result in results)


def _list_cells(finding: Finding) -> tuple[str, ...]:
    cause = translate_sentence(finding.causes[0].text if finding.causes else finding.unexplained)
    error = format_number(finding.metrics.get("error", float("nan")))
    return (
        finding.scope or finding.kind,
        finding.target_ops[-1] if finding.target_ops else "-",
        finding.reference_ops[-1] if finding.reference_ops else "-",
        error,
        format_number(finding.tolerance),
        cause,
    )


def list_stage_states(evidence: Evidence) -> Mapping[str, str]:
    """Return every stage in order with its state: agree, differ, inconclusive or not given."""
    verdicts = {stage.name: stage.verdict for stage in evidence.stages}
    return {name: verdicts.get(name, NOT_GIVEN) for name in STAGES}


def build_overview(evidence: Evidence) -> TableBlock:
    """Return a table of all stages: state, and headline or why there was nothing to compare."""
    headlines = {stage.name: stage.headline for stage in evidence.stages}
    rows = []
    for name, state in list_stage_states(evidence).items():
        summary = headlines.get(name, evidence.skipped.get(name, ""))
        rows.append((translate(name), translate(state), translate_sentence(summary)))
    return TableBlock("stage", ("", "what it found"), tuple(rows))


def build_conclusion(triaged: TriageResult) -> tuple[ListBlock, ...]:
    """Return the reasons of the conclusion.

    They are its evidence, what else differs, what was ruled out and by what, and what is not known.
    Stages without input are only in :func:`build_overview`.
    """
    decision = triaged.decision
    ruled_out = [
        translate(
            "{place}, by {stage}: {summary}",
            place=translate(place.place),
            stage=translate(place.stage),
            summary=translate_sentence(place.summary),
        )
        for place in decision.ruled_out
    ]
    not_given = {f"{name}: {reason}" for name, reason in triaged.evidence.skipped.items()}
    unknown = [line for line in decision.missing if line not in not_given]
    blocks = (
        ListBlock("because", _translate_lines(decision.evidence)),
        ListBlock("also different", _translate_lines(decision.other_differences)),
        ListBlock("ruled out", tuple(ruled_out)),
        ListBlock("not known", _translate_lines(unknown)),
    )
    return tuple(block for block in blocks if block.lines)


def _translate_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return sentences, of which some begin with the name of a stage."""
    translated_lines = []
    for line in lines:
        stage, colon, sentence = line.partition(": ")
        if colon and stage in STAGES:
            translated_line = f"{translate(stage)}{translate(': ')}{translate_sentence(sentence)}"
        else:
            translated_line = translate_sentence(line)
        translated_lines.append(translated_line)
    return tuple(translated_lines)


def format_symptom(triaged: TriageResult) -> str:
    """Describe what the runs show."""
    return translate(SYMPTOMS[triaged.decision.symptom])
