"""The triage for an issue or a merge request: short, in one comment, and text stays text."""

from __future__ import annotations

from dataclasses import replace

from dumpdiff.diagnosis.advice import Advice
from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.triage.markdown import to_markdown

from ..pages import Page


def test_the_answer_then_what_to_do_then_every_stage(triaged: TriageResult) -> None:
    markdown = to_markdown(triaged)
    assert markdown.startswith(
        "**The forward pass differs:** `layers.1.post_attention_norm` behaves as "
    )
    text = Page(markdown).text
    assert (
        text.index("Next: look at finding 1")
        < text.index(triaged.advice[0].commands[0])
        < text.index("what it found")
    )
    assert Page(markdown).rows[: len(STAGES) + 1] == [3] * (len(STAGES) + 1)
    assert "| forward | **differ** | " in markdown
    assert "| weights | agree | " in markdown


def test_what_agrees_is_not_unfolded_further(triaged: TriageResult) -> None:
    markdown = to_markdown(triaged)
    for summary in ("Because", "Ruled out", "Logs: differ", "Forward: differ", "Optimizer: differ"):
        assert f"<summary>{summary}</summary>" in markdown
    assert "<summary>Weights" not in markdown
    assert "<summary>Settings" not in markdown


def test_tables_are_tables(triaged: TriageResult) -> None:
    assert {"table", "details", "pre"} <= Page(to_markdown(triaged)).tags


def test_hostile_text_does_nothing(weights_only: TriageResult) -> None:
    name = "</details> @team #2 |x| ![a](http://b) <script>a</script> $x$"
    hostile_triage = replace(
        weights_only,
        decision=replace(weights_only.decision, headline=name, evidence=(name,)),
        evidence=replace(weights_only.evidence, skipped={"logs": name}),
        advice=(Advice(name, ("cat '```\n# heading'", "```")),),
    )
    page = Page(to_markdown(hostile_triage))
    assert not page.tags & {"script", "img", "a", "h1"}
    assert set(page.rows) == {3}
    assert "cat '```\\n# heading'" in page.text


def test_the_report_fits_into_one_comment(triaged: TriageResult) -> None:
    many = tuple(f"layers.{i}.{'x' * 400}" for i in range(1000))
    decision = replace(
        triaged.decision, evidence=many, other_differences=many, missing=many, headline="h" * 9000
    )
    commands = tuple(f"dumpdiff align {'a' * 300} {i}" for i in range(1000))
    long_triage = replace(triaged, decision=decision, advice=(Advice("do", commands),))
    assert len(to_markdown(long_triage)) < 65_536
