"""Every stage as tables and lists, as its own command prints it."""

from __future__ import annotations

from dataclasses import replace

from dumpdiff.diagnosis.evidence import STAGES, Evidence
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.model.stage import Stage
from dumpdiff.reports.formats.blocks import ListBlock, TableBlock
from dumpdiff.reports.stages import logs, settings
from dumpdiff.reports.triage.sections import build_overview, build_sections, list_stage_states


def test_every_stage_with_input_has_a_section(
    triaged: TriageResult, weights_only: TriageResult
) -> None:
    assert tuple(section.stage.name for section in build_sections(triaged.evidence)) == STAGES
    assert [section.stage.name for section in build_sections(weights_only.evidence)] == ["weights"]


def test_a_section_has_what_the_own_command_prints(triaged: TriageResult) -> None:
    sections = {section.stage.name: section for section in build_sections(triaged.evidence)}
    evidence = triaged.evidence
    assert evidence.settings is not None
    assert evidence.logs is not None
    assert sections["settings"].sides == settings.format_sides(evidence.settings)
    assert set(sections["logs"].blocks) <= set(logs.build_blocks(evidence.logs))
    (criteria,) = (block for block in sections["logs"].blocks if isinstance(block, TableBlock))
    assert [row[0] for row in criteria.rows][:2] == ["first loss", "second loss"]


def test_no_block_is_empty(triaged: TriageResult) -> None:
    for section in build_sections(triaged.evidence):
        assert all(
            block.rows if isinstance(block, TableBlock) else block.lines for block in section.blocks
        )


def test_a_phase_lists_its_findings_and_the_evidence_of_the_first(triaged: TriageResult) -> None:
    (forward,) = (
        section for section in build_sections(triaged.evidence) if section.stage.name == "forward"
    )
    findings, first = forward.blocks
    assert isinstance(findings, TableBlock)
    assert isinstance(first, ListBlock)
    ((scope, target, reference, error, _, cause),) = findings.rows
    assert (scope, reference, error) == (
        "layers.1.post_attention_norm",
        "Tensor.__add__.12.forward",
        "4.3e-3",
    )
    assert target.endswith("Add-op12")
    assert "epsilon = 0.01" in cause
    assert "scalar argument 0.01 against 1e-05" in first.lines


def test_a_stage_that_failed_has_the_reason(triaged: TriageResult) -> None:
    failed_stage = Stage(
        "logs", "inconclusive", "a.log: holds no steps", (), ("a.log: holds no steps",)
    )
    (section,) = build_sections(Evidence(stages=(failed_stage,)))
    assert section.sides is None
    assert section.blocks == (ListBlock("not known", ("a.log: holds no steps",)),)


def test_states_of_stages(triaged: TriageResult, weights_only: TriageResult) -> None:
    states = list_stage_states(triaged.evidence)
    assert {
        name: states[name] for name in ("data", "logs", "forward", "backward", "optimizer")
    } == {
        "data": "agree",
        "logs": "differ",
        "forward": "differ",
        "backward": "inconclusive",
        "optimizer": "differ",
    }
    assert set(list_stage_states(weights_only.evidence).values()) == {"agree", "not given"}
    silent = build_overview(replace(weights_only.evidence, skipped={}))
    assert silent.rows[0] == ("settings", "not given", "")
