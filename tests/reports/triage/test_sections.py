"""Every stage as tables and lists: in the words of its own command."""

from __future__ import annotations

from dataclasses import replace

from dumpdiff.diagnosis.evidence import STAGES, Evidence
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.model.stage import Stage
from dumpdiff.reports.stages import logs, settings
from dumpdiff.reports.stages.sections import ListBlock, TableBlock
from dumpdiff.reports.triage.sections import build_overview, build_sections, list_stage_states


def test_every_stage_that_was_looked_at_has_a_section(triaged: TriageResult, bare: TriageResult) -> None:
    assert tuple(section.stage.name for section in build_sections(triaged.evidence)) == STAGES
    assert [section.stage.name for section in build_sections(bare.evidence)] == ["weights"]


def test_a_section_has_what_the_own_command_prints(triaged: TriageResult) -> None:
    found = {section.stage.name: section for section in build_sections(triaged.evidence)}
    evidence = triaged.evidence
    assert evidence.settings is not None
    assert evidence.logs is not None
    assert found["settings"].sides == settings.format_sides(evidence.settings)
    assert set(found["logs"].parts) <= set(logs.build_blocks(evidence.logs))
    (criteria,) = (part for part in found["logs"].parts if isinstance(part, TableBlock))
    assert [row[0] for row in criteria.rows][:2] == ["first loss", "second loss"]


def test_no_part_is_empty(triaged: TriageResult) -> None:
    for section in build_sections(triaged.evidence):
        assert all(part.rows if isinstance(part, TableBlock) else part.lines for part in section.parts)


def test_a_pass_lists_its_findings_and_what_the_first_rests_on(triaged: TriageResult) -> None:
    (forward,) = (
        section for section in build_sections(triaged.evidence) if section.stage.name == "forward"
    )
    findings, first = forward.parts
    assert isinstance(findings, TableBlock)
    assert isinstance(first, ListBlock)
    ((scope, target, reference, error, _, why),) = findings.rows
    assert (scope, reference, error) == (
        "layers.1.post_attention_norm",
        "Tensor.__add__.12.forward",
        "4.3e-3",
    )
    assert target.endswith("Add-op12")
    assert "epsilon = 0.01" in why
    assert "scalar argument 0.01 against 1e-05" in first.lines


def test_a_stage_that_failed_says_why(triaged: TriageResult) -> None:
    lost = Stage("logs", "inconclusive", "a.log: holds no steps", (), ("a.log: holds no steps",))
    (section,) = build_sections(Evidence(stages=(lost,)))
    assert section.sides is None
    assert section.parts == (ListBlock("not known", ("a.log: holds no steps",)),)


def test_states_of_stages(triaged: TriageResult, bare: TriageResult) -> None:
    found = list_stage_states(triaged.evidence)
    assert {name: found[name] for name in ("data", "logs", "forward", "backward", "optimizer")} == {
        "data": "agree", "logs": "differ", "forward": "differ", "backward": "inconclusive", "optimizer": "differ",
    }  # fmt: skip
    assert set(list_stage_states(bare.evidence).values()) == {"agree", "not given"}
    silent = build_overview(replace(bare.evidence, skipped={}))
    assert silent.rows[0] == ("settings", "not given", "")
